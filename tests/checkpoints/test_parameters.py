"""Names are read right if they agree with the modules that bear them.

Three sources of truth, none of which is the code under test: models of the library, built without
memory and walked as modules; a table of names as published checkpoints store them; and what T5's
norm must be at its initialization.
"""

import math
import random
import re
import time
import warnings
from dataclasses import dataclass, replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgrowth.checkpoints.checkpoint import STORAGE, Tensor
from normgrowth.checkpoints.parameters.parameter_names import INCLUDE_CHOICES, ROLES, Reading, read_names
from normgrowth.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
nn = torch.nn

DTYPES = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL", torch.uint8: "U8"}


def index_of(model) -> dict[str, Tensor]:
    return {name: Tensor(DTYPES[t.dtype], tuple(t.shape)) for name, t in model.state_dict().items()}


def counted(readings: dict[str, Reading]) -> set[str]:
    return {name for name, reading in readings.items() if reading.counted}


# Models of the library ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """A model class, its config's way to say "three layers", and where its blocks are as modules."""

    model: str
    layers: dict[str, int]
    blocks: dict[str, str]
    extra: tuple[tuple[str, object], ...] = ()

    def build(self):
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")  # the library's own, when it loads a model's code
            model_class = getattr(transformers, self.model)
            return model_class(model_class.config_class(**self.layers, **dict(self.extra)))


def one(model: str, path: str, key: str = "num_hidden_layers", **extra: object) -> Family:
    return Family(model, {key: 3}, {"layer": path}, tuple(extra.items()))


def two(model: str, encoder: str, decoder: str, keys: tuple[str, str]) -> Family:
    layers = {keys[0]: 2, keys[1]: 3}
    return Family(model, layers, {"encoder": encoder, "decoder": decoder})


FAMILIES = {
    "bert": one("BertForPreTraining", "bert.encoder.layer"),
    "bert-classifier": one("BertForSequenceClassification", "bert.encoder.layer"),
    "bert-qa": one("BertForQuestionAnswering", "bert.encoder.layer"),
    "bert-cross": one("BertLMHeadModel", "bert.encoder.layer", is_decoder=True, add_cross_attention=True),
    "roberta": one("RobertaForMaskedLM", "roberta.encoder.layer"),
    "albert": one("AlbertForPreTraining", "albert.encoder.albert_layer_groups", "num_hidden_groups"),
    "distilbert": one("DistilBertForMaskedLM", "distilbert.transformer.layer", "n_layers"),
    "electra": one("ElectraForPreTraining", "electra.encoder.layer"),
    "deberta": one("DebertaForMaskedLM", "deberta.encoder.layer"),
    "deberta-v2": one(
        "DebertaV2ForMaskedLM", "deberta.encoder.layer", relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "xlnet": one("XLNetLMHeadModel", "transformer.layer", "n_layer"),
    "gpt2": one("GPT2LMHeadModel", "transformer.h", "n_layer"),
    "gpt2-cross": one("GPT2LMHeadModel", "transformer.h", "n_layer", add_cross_attention=True),
    "gpt-neo": one("GPTNeoForCausalLM", "transformer.h", "num_layers", attention_types=[[["global"], 3]]),
    "gpt-neox": one("GPTNeoXForCausalLM", "gpt_neox.layers"),
    "gpt-j": one("GPTJForCausalLM", "transformer.h", "n_layer"),
    "codegen": one("CodeGenForCausalLM", "transformer.h", "n_layer"),
    "opt": one("OPTForCausalLM", "model.decoder.layers"),
    "llama": one("LlamaForCausalLM", "model.layers"),
    "llama-biased": one("LlamaForCausalLM", "model.layers", attention_bias=True, mlp_bias=True),
    "llama-classifier": one("LlamaForSequenceClassification", "model.layers"),
    "mistral": one("MistralForCausalLM", "model.layers"),
    "mixtral": one("MixtralForCausalLM", "model.layers"),
    "qwen2": one("Qwen2ForCausalLM", "model.layers"),
    "qwen2-moe": one("Qwen2MoeForCausalLM", "model.layers"),
    "qwen3": one("Qwen3ForCausalLM", "model.layers"),
    "gemma2": one("Gemma2ForCausalLM", "model.layers"),
    "gemma3": one("Gemma3ForCausalLM", "model.layers"),
    "olmo": one("OlmoForCausalLM", "model.layers"),
    "olmo2": one("Olmo2ForCausalLM", "model.layers"),
    "bloom": one("BloomForCausalLM", "transformer.h", "n_layer"),
    "falcon": one("FalconForCausalLM", "transformer.h"),
    "mpt": one("MptForCausalLM", "transformer.blocks", "n_layers"),
    "phi": one("PhiForCausalLM", "model.layers"),
    "phi3": one("Phi3ForCausalLM", "model.layers"),
    "vit": one("ViTForImageClassification", "vit.layers"),
    "wav2vec2": one("Wav2Vec2ForPreTraining", "wav2vec2.encoder.layers"),
    "t5": two(
        "T5ForConditionalGeneration", "encoder.block", "decoder.block", ("num_layers", "num_decoder_layers")
    ),
    "mt5": two(
        "MT5ForConditionalGeneration", "encoder.block", "decoder.block", ("num_layers", "num_decoder_layers")
    ),
    "bart": two(
        "BartForConditionalGeneration",
        "model.encoder.layers",
        "model.decoder.layers",
        ("encoder_layers", "decoder_layers"),
    ),
    "marian": two(
        "MarianMTModel", "model.encoder.layers", "model.decoder.layers", ("encoder_layers", "decoder_layers")
    ),
    "pegasus": two(
        "PegasusForConditionalGeneration",
        "model.encoder.layers",
        "model.decoder.layers",
        ("encoder_layers", "decoder_layers"),
    ),
    "whisper": two(
        "WhisperForConditionalGeneration",
        "model.encoder.layers",
        "model.decoder.layers",
        ("encoder_layers", "decoder_layers"),
    ),
    "clip": Family(
        "CLIPModel",
        {},
        {"text_model": "text_model.encoder.layers", "vision_model": "vision_model.encoder.layers"},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    blueprint = FAMILIES[request.param]
    model = blueprint.build()
    return blueprint, model, index_of(model)


def test_buffers_are_what_the_model_calls_buffers(family):
    _, model, index = family
    readings = read_names(index, include="all")
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)} & set(index)
    assert parameters | buffers == set(index)
    assert {name for name, reading in readings.items() if reading.role == "buffer"} == buffers
    assert counted(readings) == parameters
    assert not any(reading.role == "optimizer" for reading in readings.values())


def test_blocks_are_the_members_of_the_model_s_lists(family):
    blueprint, model, index = family
    expected = {
        f"{path}.{number}.{name}": f"{stack}.{number}"
        for stack, path in blueprint.blocks.items()
        for number, block in enumerate(model.get_submodule(path))
        for name, parameter in block.named_parameters()
        if parameter.numel() > 1
    }
    readings = read_names(index)
    assert counted(readings) == set(expected)
    assert {name: readings[name].layer_name for name in expected} == expected
    for include in ("encoder", "decoder"):
        if include in blueprint.blocks or len(blueprint.blocks) == 1:
            stack = include if include in blueprint.blocks else "layer"
            within = {name for name, layer in expected.items() if layer.startswith(stack + ".")}
            assert counted(read_names(index, include=include)) == within


def test_norms_and_embeddings_are_what_their_modules_are(family):
    _, model, index = family
    readings = read_names(index)
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, _ in model.named_parameters(remove_duplicate=False):
        owner, role = modules[name.rpartition(".")[0]], readings[name].role
        assert (role == "norm") == ("Norm" in type(owner).__name__), name
        if isinstance(owner, nn.Embedding):
            positional = any(word in name for word in ("position", "wpe", "relative", "rel_embeddings"))
            assert role == ("position" if positional else "embedding"), name


QKVO = sorted(f"attention.{word}" for word in ("query", "key", "value", "output"))
FUSED = ["attention.output", "attention.qkv"]
CROSS = ["attention.output", "attention.qkv", "attention.query"]  # GPT-2's: keys and values are fused


def test_roles_in_blocks_are_those_of_the_surrounding_modules(family):
    """Matrices under a module whose class is an attention have its roles, each once; all others are feedforward, or
    those of a mixture of experts. XLNet and fused experts keep bare parameters instead: `MIXTURES` and the table
    below have them."""
    blueprint, model, index = family
    readings = read_names(index)
    for path in blueprint.blocks.values():
        for number, block in model.get_submodule(path).named_children():
            attentions = {
                name: []
                for name, module in block.named_modules()
                if name and "Attention" in type(module).__name__
            }
            for name, module in block.named_modules():
                if isinstance(module, nn.Linear | transformers.pytorch_utils.Conv1D):
                    role = readings[f"{path}.{number}.{name}.weight"].role
                    around = [attention for attention in attentions if name.startswith(attention + ".")]
                    if around:
                        attentions[min(around, key=len)].append(role)
                    else:
                        shared = "router" if name.endswith("_expert_gate") else "experts"
                        assert role == (shared if "expert" in name else "feedforward"), name
            found = [sorted(roles) for roles in attentions.values() if roles]
            assert found or blueprint.model.startswith("XLNet")
            for roles in found:
                assert [role for role in roles if role != "position"] in (QKVO, FUSED, CROSS)


MIXTURES = {
    "MixtralForCausalLM": {},
    "Qwen2MoeForCausalLM": {"mlp_only_layers": [0]},
    "Qwen3MoeForCausalLM": {"mlp_only_layers": [0]},
    "DeepseekV3ForCausalLM": {"first_k_dense_replace": 1},
    "OlmoeForCausalLM": {},
    "GptOssForCausalLM": {},
    "GraniteMoeForCausalLM": {},
    "JambaForCausalLM": {"num_hidden_layers": 8},
    "Llama4ForCausalLM": {},
}
MIXTURE_MODULES = {  # by the class of the module that holds a parameter, or one around it
    "router": re.compile(r"\w*(Router|TopKGating)"),
    "experts": re.compile(r"\w*(Experts|ParallelExperts)"),
}


@pytest.mark.parametrize("model_class", MIXTURES)
def test_routers_and_experts_are_what_their_modules_are(model_class):
    """A shared expert and the gates that are plain matrices are known by where the model itself uses them."""
    extra = {"num_hidden_layers": 2} | MIXTURES[model_class]
    model = Family(model_class, {}, {}, tuple(extra.items())).build()
    modules = dict(model.named_modules())
    readings = read_names(index_of(model))
    found = {"router": 0, "experts": 0, "feedforward": 0}
    for name, _ in model.named_parameters():
        path = name.split(".")
        around = [modules[".".join(path[:n])] for n in range(1, len(path))]
        classes = [type(module).__name__ for module in around]
        expected = next(
            (role for role, kind in MIXTURE_MODULES.items() if any(map(kind.fullmatch, classes))), None
        )
        if expected is None and "shared_expert" in name:
            expected = "router" if "gate.weight" in name else "experts"
        if expected is None and any(kind.endswith(("MLP", "Mlp")) for kind in classes):
            expected = "feedforward"
        role = readings[name].role
        if expected or role in found:
            assert role == expected, (name, classes)
            found[role] += 1
    assert found["router"]
    assert found["experts"]
    dense = any(word in extra for word in ("mlp_only_layers", "first_k_dense_replace"))
    assert not dense or found["feedforward"] == 3


def test_nothing_in_a_block_is_left_unread(family):
    _, _, index = family
    assert not [r.name for r in read_names(index).values() if r.layer is not None and r.role == "other"]


@pytest.mark.parametrize("change", ["model.{}", "module._orig_mod.{}", "app.model.{}", "/"])
def test_wrappers_and_separators_change_nothing(family, change):
    _, _, index = family
    rename = (lambda name: name.replace(".", "/")) if change == "/" else change.format
    before, after = read_names(index), read_names({rename(name): tensor for name, tensor in index.items()})
    for name, reading in before.items():
        assert after[rename(name)] == replace(reading, name=rename(name))


def test_optimizer_state_beside_a_model_changes_nothing(family):
    _, _, index = family
    states = {}
    for name, tensor in index.items():
        for slot in ("exp_avg", "exp_avg_sq", "step"):
            states[f"optimizer.state.{name}.{slot}"] = tensor
            states[f"app.optim.state.{name}.{slot}"] = tensor
        states |= {f"{name}_slot_vr": tensor, f"{name}/adam_m": tensor, f"{name}.momentum_buffer": tensor}
    readings = read_names({**states, **index}, include="all")
    assert all(readings[name].role == "optimizer" and not readings[name].counted for name in states)
    alone = read_names(index, include="all")
    assert {name: readings[name] for name in index} == alone


def test_torch_s_own_transformer():
    model = nn.Transformer(8, 2, 2, 3, 16, batch_first=True, device="meta")
    readings = read_names(index_of(model))
    assert {r.layer_name for r in readings.values()} - {None} == {
        *(f"encoder.{n}" for n in range(2)),
        *(f"decoder.{n}" for n in range(3)),
    }
    assert {n for n in readings if not readings[n].counted} == {
        f"{stack}.norm.{leaf}" for stack in ("encoder", "decoder") for leaf in ("weight", "bias")
    }


# Names as checkpoints store them ----------------------------------------------------------------------

# name, shape, layer, role, counted in include blocks; "@" is what TensorFlow 2 ends its names with
TABLE = {
    "gpt2 as published": """
        wte.weight                                50x8     -        embedding        no
        wpe.weight                                16x8     -        position         no
        h.0.ln_1.weight                           8        layer.0  norm             yes
        h.0.attn.bias                             1x1x16x16  layer.0  buffer         no
        h.0.attn.masked_bias                      -        layer.0  buffer           no
        h.0.attn.c_attn.weight                    8x24     layer.0  attention.qkv    yes
        h.0.attn.c_attn.bias                      24       layer.0  attention.qkv    yes
        h.0.attn.c_proj.weight                    8x8      layer.0  attention.output yes
        h.0.mlp.c_fc.weight                       8x32     layer.0  feedforward      yes
        h.0.mlp.c_proj.bias                       8        layer.0  feedforward      yes
        ln_f.weight                               8        -        norm             no
    """,
    "gpt2 of openai, tensorflow": """
        model/wte                                 50x8     -        embedding        no
        model/h0/attn/c_attn/w                    1x8x24   layer.0  attention.qkv    yes
        model/h0/attn/c_proj/b                    8        layer.0  attention.output yes
        model/h0/ln_1/g                           8        layer.0  norm             yes
        model/h11/mlp/c_fc/w                      1x8x32   layer.11 feedforward      yes
        model/ln_f/b                              8        -        norm             no
    """,
    "gpt-neox with its masks": """
        gpt_neox.embed_in.weight                              50x8  -  embedding     no
        gpt_neox.layers.0.attention.bias                      1x1x16x16 layer.0 buffer no
        gpt_neox.layers.0.attention.masked_bias               -     layer.0 buffer   no
        gpt_neox.layers.0.attention.rotary_emb.inv_freq       4     layer.0 buffer   no
        gpt_neox.layers.0.attention.query_key_value.weight    24x8  layer.0 attention.qkv yes
        gpt_neox.layers.0.attention.query_key_value.bias      24    layer.0 attention.qkv yes
        gpt_neox.layers.0.attention.dense.weight              8x8   layer.0 attention.output yes
        gpt_neox.layers.0.mlp.dense_h_to_4h.weight            32x8  layer.0 feedforward yes
        gpt_neox.layers.0.post_attention_layernorm.weight     8     layer.0 norm     yes
        gpt_neox.final_layer_norm.weight                      8     -  norm          no
        embed_out.weight                                      50x8  -  head          no
    """,
    "biases that are no masks": """
        encoder.layers.0.attn.bias                 8        layer.0  other            yes
        encoder.layers.0.attn.query.weight         8x8      layer.0  attention.query  yes
        encoder.layers.0.attention.bias            2x16x16  layer.0  other            yes
        encoder.layers.0.cross_attn.bias           1x4x8    layer.0  other            yes
        encoder.layers.0.attention.output.bias     8        layer.0  attention.output yes
        encoder.layers.0.mlp.bias                  1x1x8x8  layer.0  feedforward      yes
    """,
    "nanoGPT": """
        _orig_mod.transformer.h.0.attn.c_attn.weight  24x8  layer.0  attention.qkv    yes
        _orig_mod.transformer.h.0.attn.bias        1x1x16x16 layer.0 buffer           no
        _orig_mod.transformer.h.0.mlp.c_proj.weight   8x32  layer.0  feedforward      yes
        _orig_mod.transformer.wte.weight           50x8     -        embedding        no
        _orig_mod.lm_head.weight                   50x8     -        head             no
    """,
    "t5 of mesh tensorflow": """
        global_step                                              -     -         optimizer no
        shared/embedding                                         50x8  -         embedding no
        shared/embedding_slot_vr                                 50    -         optimizer no
        encoder/block_000/layer_000/SelfAttention/q              8x8   encoder.0 attention.query yes
        encoder/block_000/layer_000/SelfAttention/q_slot_vc      8     -         optimizer no
        encoder/block_000/layer_000/SelfAttention/relative_attention_bias 2x32 encoder.0 position yes
        encoder/block_000/layer_000/SelfAttention/relative_attention_bias_slot_v 2x32 - optimizer no
        encoder/block_000/layer_000/layer_norm/scale             8     encoder.0 norm yes
        encoder/block_000/layer_000/layer_norm/scale_slot_v      8     -         optimizer no
        encoder/block_011/layer_001/DenseReluDense/wi/kernel     8x32  encoder.11 feedforward yes
        encoder/final_layer_norm/scale                           8     -         norm no
        decoder/block_003/layer_001/EncDecAttention/o            8x8   decoder.3 attention.output yes
        decoder/block_003/layer_002/DenseReluDense/wo/kernel     32x8  decoder.3 feedforward yes
        decoder/logits/kernel                                    8x50  -         head no
    """,
    "t5 of t5x": """
        target.encoder.layers_0.attention.query.kernel           8x8   encoder.0 attention.query yes
        target.encoder.layers_0.attention.out.kernel             8x8   encoder.0 attention.output yes
        target.encoder.layers_0.mlp.wi_0.kernel                  8x32  encoder.0 feedforward yes
        target.encoder.layers_0.pre_mlp_layer_norm.scale         8     encoder.0 norm yes
        target.encoder.relpos_bias.rel_embedding                 2x32  -         position no
        target.decoder.layers_7.encoder_decoder_attention.key.kernel 8x8 decoder.7 attention.key yes
        target.token_embedder.embedding                          50x8  -         embedding no
        target.decoder.logits_dense.kernel                       8x50  -         head no
        state.param_states.encoder.layers_0.attention.query.kernel.v_col 8 -     optimizer no
    """,
    "bert of google, tensorflow": """
        bert/embeddings/word_embeddings                          50x8  -        embedding no
        bert/embeddings/position_embeddings                      16x8  -        position  no
        bert/embeddings/token_type_embeddings                    2x8   -        embedding no
        bert/embeddings/LayerNorm/gamma                          8     -        norm      no
        bert/encoder/layer_0/attention/self/query/kernel         8x8   layer.0  attention.query yes
        bert/encoder/layer_0/attention/self/query/kernel/adam_m  8x8   -        optimizer no
        bert/encoder/layer_0/attention/self/query/kernel/adam_v  8x8   -        optimizer no
        bert/encoder/layer_0/attention/output/dense/kernel       8x8   layer.0  attention.output yes
        bert/encoder/layer_0/attention/output/LayerNorm/beta     8     layer.0  norm      yes
        bert/encoder/layer_11/intermediate/dense/kernel          8x32  layer.11 feedforward yes
        bert/encoder/layer_11/output/dense/bias                  8     layer.11 feedforward yes
        bert/pooler/dense/kernel                                 8x8   -        head      no
        cls/predictions/output_bias                              50    -        head      no
        cls/seq_relationship/output_weights                      2x8   -        head      no
        global_step                                              -     -        optimizer no
    """,
    "albert of google, tensorflow": """
        encoder/embedding_hidden_mapping_in/kernel          4x8   -        embedding no
        transformer/group_0/inner_group_0/attention_1/self/query/kernel 8x8 layer.0 attention.query yes
        transformer/group_0/inner_group_0/attention_1/output/dense/kernel 8x8 layer.0 attention.output yes
        transformer/group_0/inner_group_0/ffn_1/intermediate/output/dense/kernel 8x8 layer.0 feedforward yes
        transformer/group_0/inner_group_0/LayerNorm_1/gamma 8 layer.0 norm yes
    """,
    "albert, shared blocks by group and within": """
        encoder.embedding_hidden_mapping_in.weight                     8x4 -       embedding no
        encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight 8x8 layer.0 attention.query yes
        encoder.albert_layer_groups.0.albert_layers.1.attention.dense.weight 8x8 layer.1 attention.output yes
        encoder.albert_layer_groups.1.albert_layers.0.ffn_output.weight 8x32 layer.2 feedforward yes
        encoder.albert_layer_groups.1.albert_layers.1.full_layer_layer_norm.bias 8 layer.3 norm yes
    """,
    "xlnet": """
        transformer.mask_emb                          1x1x8    -        embedding        no
        transformer.word_embedding.weight             50x8     -        embedding        no
        transformer.layer.0.rel_attn.q                8x2x4    layer.0  attention.query  yes
        transformer.layer.0.rel_attn.k                8x2x4    layer.0  attention.key    yes
        transformer.layer.0.rel_attn.v                8x2x4    layer.0  attention.value  yes
        transformer.layer.0.rel_attn.o                8x2x4    layer.0  attention.output yes
        transformer.layer.0.rel_attn.r                8x2x4    layer.0  position         yes
        transformer.layer.0.rel_attn.r_w_bias         2x4      layer.0  position         yes
        transformer.layer.0.rel_attn.r_s_bias         2x4      layer.0  position         yes
        transformer.layer.0.rel_attn.seg_embed        2x2x4    layer.0  embedding        yes
        transformer.layer.0.ff.layer_1.weight         32x8     layer.0  feedforward      yes
        transformer.layer.0.ff.layer_norm.weight      8        layer.0  norm             yes
        lm_loss.weight                                50x8     -        head             no
    """,
    "xlm, parallel lists": """
        transformer.attentions.0.q_lin.weight         8x8      layer.0  attention.query  yes
        transformer.attentions.1.out_lin.bias         8        layer.1  attention.output yes
        transformer.layer_norm1.0.weight              8        layer.0  norm             yes
        transformer.layer_norm1.1.weight              8        layer.1  norm             yes
        transformer.ffns.0.lin1.weight                32x8     layer.0  feedforward      yes
        transformer.ffns.1.lin2.weight                8x32     layer.1  feedforward      yes
        pred_layer.proj.weight                        50x8     -        head             no
    """,
    "mixtral as published": """
        model.layers.0.self_attn.q_proj.weight        8x8      layer.0  attention.query  yes
        model.layers.0.block_sparse_moe.gate.weight   4x8      layer.0  router           yes
        model.layers.0.block_sparse_moe.experts.3.w1.weight 16x8 layer.0 experts         yes
        model.layers.0.mlp.experts.gate_up_proj       4x32x8   layer.0  experts          yes
        model.layers.0.mlp.gate.e_score_correction_bias 4      layer.0  buffer           no
        model.layers.10.self_attn.rotary_emb.inv_freq 4        layer.10 buffer           no
        model.norm.weight                             8        -        norm             no
    """,
    "deepseek": """
        model.layers.0.self_attn.q_a_proj.weight          4x8  layer.0  attention.query  yes
        model.layers.0.self_attn.q_a_layernorm.weight     4    layer.0  norm             yes
        model.layers.0.self_attn.kv_a_proj_with_mqa.weight 4x8 layer.0  attention.qkv    yes
        model.layers.0.self_attn.kv_b_proj.weight         8x4  layer.0  attention.qkv    yes
        model.layers.0.mlp.shared_experts.down_proj.weight 8x4 layer.0  experts          yes
        model.layers.0.mlp.up_proj.weight                 8x8  layer.0  feedforward      yes
        model.layers.1.mlp.gate.weight                    4x8  layer.1  router           yes
        model.layers.1.mlp.experts.11.gate_proj.weight    4x8  layer.1  experts          yes
    """,
    "qwen2-moe as published": """
        model.layers.0.self_attn.q_proj.weight        8x8      layer.0  attention.query  yes
        model.layers.0.mlp.gate.weight                4x8      layer.0  router           yes
        model.layers.0.mlp.experts.3.gate_proj.weight 16x8     layer.0  experts          yes
        model.layers.0.mlp.shared_expert.up_proj.weight 16x8   layer.0  experts          yes
        model.layers.0.mlp.shared_expert_gate.weight  1x8      layer.0  router           yes
    """,
    "granite, whose mixture does not name its experts": """
        model.layers.0.self_attn.q_proj.weight                     8x8    layer.0  attention.query yes
        model.layers.0.block_sparse_moe.router.layer.weight        4x8    layer.0  router          yes
        model.layers.0.block_sparse_moe.input_linear.weight        4x32x8 layer.0  experts         yes
        model.layers.0.shared_mlp.output_linear.weight             8x16   layer.0  feedforward     yes
    """,
    "a gate without experts, and a whole model that is called an expert": """
        gemma_expert.model.layers.0.self_attn.q_proj.weight   8x8   layer.0  attention.query  yes
        gemma_expert.model.layers.0.mlp.gate.weight           16x8  layer.0  feedforward      yes
        gemma_expert.model.layers.0.mlp.up_proj.weight        16x8  layer.0  feedforward      yes
    """,
    "llama of meta": """
        tok_embeddings.weight                         50x8     -        embedding        no
        layers.0.attention.wq.weight                  8x8      layer.0  attention.query  yes
        layers.0.attention.wo.weight                  8x8      layer.0  attention.output yes
        layers.0.attention.inner_attention.rope.freqs 2        layer.0  buffer           no
        layers.0.feed_forward.w2.weight               8x16     layer.0  feedforward      yes
        layers.0.ffn_norm.weight                      8        layer.0  norm             yes
        norm.weight                                   8        -        norm             no
        output.weight                                 50x8     -        head             no
        rope.freqs                                    2        -        buffer           no
    """,
    "olmo of old": """
        model.transformer.wte.weight                  50x8     -        embedding        no
        model.transformer.blocks.0.att_proj.weight    24x8     layer.0  attention.qkv    yes
        model.transformer.blocks.0.attn_out.weight    8x8      layer.0  attention.output yes
        model.transformer.blocks.0.ff_proj.weight     32x8     layer.0  feedforward      yes
        model.transformer.blocks.0.ff_out.weight      8x16     layer.0  feedforward      yes
        model.transformer.blocks.0.attn_norm.weight   8        layer.0  norm             yes
        model.transformer.ff_out.weight               50x8     -        head             no
    """,
    "megatron": """
        language_model.embedding.word_embeddings.weight 50x8 - embedding no
        language_model.embedding.position_embeddings.weight 16x8 - position no
        language_model.encoder.layers.0.self_attention.query_key_value.weight 24x8 layer.0 attention.qkv yes
        language_model.encoder.layers.0.self_attention.dense.weight 8x8  layer.0 attention.output yes
        language_model.encoder.layers.0.mlp.dense_4h_to_h.weight 8x32 layer.0 feedforward yes
        language_model.encoder.layers.0.input_layernorm.weight 8    layer.0 norm yes
        language_model.encoder.final_layernorm.weight 8    -       norm no
        language_model.output_layer.weight 50x8 -       head no
    """,
    "megatron core": """
        decoder.layers.0.self_attention.linear_qkv.weight                 24x8 layer.0 attention.qkv yes
        decoder.layers.0.self_attention.linear_qkv.layer_norm_weight      8    layer.0 norm yes
        decoder.layers.0.self_attention.linear_proj.weight                8x8  layer.0 attention.output yes
        decoder.layers.0.mlp.linear_fc1.weight                            32x8 layer.0 feedforward yes
    """,
    "gpt-neox, the stages of a pipeline": """
        sequential.0.word_embeddings.weight             50x8   -        embedding        no
        sequential.2.attention.query_key_value.weight   24x8   layer.2  attention.qkv    yes
        sequential.2.input_layernorm.weight             8      layer.2  norm             yes
        sequential.3.attention.dense.weight             8x8    layer.3  attention.output yes
    """,
    "fairseq": """
        encoder.version                                3      -         buffer           no
        encoder.embed_tokens.weight                    50x8   -         embedding        no
        encoder.embed_positions._float_tensor          1      -         buffer           no
        encoder.embed_positions.weights                16x8   -         buffer           no
        encoder.layers.0.self_attn.in_proj_weight      24x8   encoder.0 attention.qkv    yes
        encoder.layers.0.self_attn.out_proj.weight     8x8    encoder.0 attention.output yes
        encoder.layers.0.fc1.weight                    32x8   encoder.0 feedforward      yes
        encoder.layers.0.final_layer_norm.weight       8      encoder.0 norm             yes
        decoder.layers.5.encoder_attn.k_proj.weight    8x8    decoder.5 attention.key    yes
        decoder.layers.5.encoder_attn_layer_norm.bias  8      decoder.5 norm             yes
        decoder.output_projection.weight               50x8   -         head             no
    """,
    "sentence-transformers": """
        0.auto_model.encoder.layer.3.attention.self.key.weight 8x8 layer.3 attention.key yes
        0.auto_model.embeddings.position_ids           1x16   -         buffer           no
        1.linear.weight                                8x8    -         other            no
    """,
    "transformer-lens": """
        embed.W_E                                      50x8   -        embedding        no
        pos_embed.W_pos                                16x8   -        position         no
        blocks.0.attn.W_Q                              2x8x4  layer.0  attention.query  yes
        blocks.0.attn.b_V                              2x4    layer.0  attention.value  yes
        blocks.0.attn.W_O                              2x4x8  layer.0  attention.output yes
        blocks.0.attn.mask                             16x16  layer.0  buffer           no
        blocks.0.attn.IGNORE                           -      layer.0  buffer           no
        blocks.0.mlp.W_in                              8x32   layer.0  feedforward      yes
        unembed.W_U                                    8x50   -        head             no
    """,
    "x-transformers": """
        net.token_emb.emb.weight                       50x8   -        embedding        no
        net.attn_layers.layers.0.0.0.g                 8      layer.0  other            yes
        net.attn_layers.layers.0.1.to_q.weight         8x8    layer.0  attention.query  yes
        net.attn_layers.layers.0.1.to_out.weight       8x8    layer.0  attention.output yes
        net.attn_layers.layers.1.1.ff.0.0.weight       32x8   layer.1  feedforward      yes
        net.to_logits.weight                           50x8   -        head             no
    """,
    "vit of timm": """
        cls_token                                      1x1x8  -        embedding        no
        pos_embed                                      1x5x8  -        position         no
        patch_embed.proj.weight                        8x3x4x4 -       embedding        no
        blocks.0.attn.qkv.weight                       24x8   layer.0  attention.qkv    yes
        blocks.0.attn.proj.weight                      8x8    layer.0  attention.output yes
        blocks.0.norm1.weight                          8      layer.0  norm             yes
        blocks.0.ls1.gamma                             8      layer.0  other            yes
        norm.weight                                    8      -        norm             no
        head.weight                                    10x8   -        head             no
    """,
    "open_clip": """
        logit_scale                                        -    -             other         no
        positional_embedding                               16x8 -             position      no
        transformer.resblocks.0.attn.in_proj_weight        24x8 layer.0 attention.qkv yes
        transformer.resblocks.0.mlp.c_proj.weight          8x32 layer.0 feedforward   yes
        visual.transformer.resblocks.0.ln_1.weight         8    visual.0 norm   yes
        visual.transformer.resblocks.0.attn.out_proj.bias  8    visual.0 attention.output yes
    """,
    "wav2vec2, with a front end of convolutions": """
        wav2vec2.feature_extractor.conv_layers.0.conv.weight  8x1x4 -       other            no
        wav2vec2.encoder.pos_conv_embed.conv.weight_g         1x1x4 -       position         no
        wav2vec2.encoder.layers.0.attention.k_proj.weight     8x8   layer.0 attention.key    yes
        wav2vec2.encoder.layers.0.feed_forward.output_dense.weight 8x32 layer.0 feedforward  yes
    """,
    "a conformer, whose parts are numbered like layers": """
        conformer.0.ffw_layer_start.ffw_layer_1.weight 32x8   layer.0  feedforward      yes
        conformer.0.attention.attn.q_proj.weight       8x8    layer.0  attention.query  yes
        conformer.11.attention.attn.linear_pos.weight  8x8    layer.11 position         yes
    """,
    "layers numbered in their own names": """
        transformer/encoder_layer_3/self_attention/q/kernel  8x8  encoder.3  attention.query  yes
        transformer/encoder_layer_3/pos_ffn/w_1/kernel       8x32 encoder.3  feedforward      yes
        transformer/decoder_layer_3/self_attention/o/kernel  8x8  decoder.3  attention.output yes
    """,
    "mamba": """
        backbone.embeddings.weight                     50x8   -        embedding        no
        backbone.layers.0.mixer.A_log                  16x4   layer.0  other            yes
        backbone.layers.0.mixer.in_proj.weight         32x8   layer.0  other            yes
        backbone.layers.0.mixer.out_proj.weight        8x16   layer.0  other            yes
        backbone.layers.0.norm.weight                  8      layer.0  norm             yes
        backbone.norm_f.weight                         8      -        norm             no
        lm_head.weight                                 50x8   -        head             no
    """,
    "rwkv": """
        emb.weight                                     50x8   -        embedding        no
        blocks.0.ln1.weight                            8      layer.0  norm             yes
        blocks.0.att.time_decay                        8      layer.0  other            yes
        blocks.0.att.key.weight                        8x8    layer.0  other            yes
        blocks.0.att.receptance.weight                 8x8    layer.0  other            yes
        blocks.0.ffn.key.weight                        32x8   layer.0  feedforward      yes
        ln_out.weight                                  8      -        norm             no
        head.weight                                    50x8   -        head             no
    """,
    "a plain network": """
        0.weight                                       8x8    layer.0  other            yes
        0.bias                                         8      layer.0  other            yes
        2.weight                                       1x1    layer.2  other            no
    """,
    "an autoencoder": """
        encoder.0.weight                               8x8    encoder.0 other           yes
        decoder.0.weight                               8x8    decoder.0 other           yes
    """,
    "tensorflow 2, objects": """
        _CHECKPOINTABLE_OBJECT_GRAPH                                       -    -       optimizer no
        save_counter/@                            -    -       optimizer no
        keras_api/metrics/0/count/@               1000 -       optimizer no
        keras_api/metrics/0/total/@               1000 -       optimizer no
        optimizer/learning_rate/@                 -    -       optimizer no
        model/layer-1/kernel/@                    8x8  layer.1 other yes
        model/layer-1/kernel/.OPTIMIZER_SLOT/optimizer/m/@ 8x8 - optimizer no
        model/layer-2/moving_mean/@               8    layer.2 buffer no
        model/layer-0/embeddings/@                50x8 -       embedding no
    """,
    "tensorflow 2, a bert": """
        layer_with_weights-0/embeddings/@ 50x8 -      embedding no
        layer_with_weights-4/_attention_layer/_query_dense/kernel/@ 8x2x4 layer.4 attention.query yes
        layer_with_weights-4/_attention_layer/_output_dense/kernel/@ 2x4x8 layer.4 attention.output yes
        layer_with_weights-4/_intermediate_dense/kernel/@ 8x32 layer.4 feedforward yes
    """,
    "torch.distributed.checkpoint": """
        model.layers.0.attention.wq.weight                       8x8  layer.0  attention.query  yes
        app.optimizer.state.layers.0.weight.exp_avg              8x8  -        optimizer        no
        optim.state.model.layers.0.attention.wq.weight.exp_avg   8x8  -        optimizer        no
        optimizer.state.layers.0.attention.wq.weight.exp_avg_sq  8x8  -        optimizer        no
        optimizer.param_groups.layers.0.attention.wq.weight.lr   -    -        optimizer        no
        lr_scheduler.last_epoch                                  -    -        optimizer        no
    """,
    "names that only look like an optimizer's": """
        optimus.layers.0.self_attn.q_proj.weight       8x8    optimus.0          attention.query  yes
        momentum_encoder.layers.0.self_attn.q_proj.weight 8x8 momentum_encoder.0 attention.query  yes
        adaptive.exp_average.weight                    8x8    -                  other            no
    """,
    "one unnumbered block, attention beside an mlp that is a Sequential": """
        embed.weight                                   50x8   -        embedding        no
        pos_embed                                      16x8   -        position         no
        W_Q                                            8x8    layer.0  attention.query  yes
        W_K                                            8x8    layer.0  attention.key    yes
        W_V                                            8x8    layer.0  attention.value  yes
        W_O                                            8x8    layer.0  attention.output yes
        mlp.0.weight                                   32x8   layer.0  feedforward      yes
        mlp.0.bias                                     32     layer.0  feedforward      yes
        mlp.2.weight                                   8x32   layer.0  feedforward      yes
        temperature                                    1      layer.0  other            no
        head.weight                                    50x8   -        head             no
    """,
    "one unnumbered block, its parts at the top": """
        wte.weight                                     50x8   -        embedding        no
        wpe.weight                                     16x8   -        position         no
        attn.q_proj.weight                             8x8    layer.0  attention.query  yes
        attn.k_proj.weight                             8x8    layer.0  attention.key    yes
        attn.v_proj.weight                             8x8    layer.0  attention.value  yes
        attn.out_proj.weight                           8x8    layer.0  attention.output yes
        attn.relative_bias                             2x16   layer.0  position         yes
        norm1.weight                                   8      layer.0  norm             yes
        net.0.weight                                   32x8   layer.0  other            yes
        net.2.weight                                   8x32   layer.0  other            yes
        lm_head.weight                                 50x8   -        head             no
    """,
    "nanoGPT with one block and no number": """
        transformer.wte.weight                         50x8   -        embedding        no
        transformer.wpe.weight                         16x8   -        position         no
        transformer.block.ln_1.weight                  8      layer.0  norm             yes
        transformer.block.attn.c_attn.weight           24x8   layer.0  attention.qkv    yes
        transformer.block.attn.c_proj.weight           8x8    layer.0  attention.output yes
        transformer.block.attn.bias                    1x1x16x16 layer.0 buffer         no
        transformer.block.mlp.c_fc.weight              32x8   layer.0  feedforward      yes
        transformer.block.mlp.c_proj.weight            8x32   layer.0  feedforward      yes
        transformer.ln_f.weight                        8      -        norm             no
        lm_head.weight                                 50x8   -        head             no
    """,
    "one unnumbered block of olmo's names, whose ff_out is not the head": """
        transformer.wte.weight                         50x8   -        embedding        no
        transformer.block.att_proj.weight              24x8   layer.0  attention.qkv    yes
        transformer.block.attn_out.weight              8x8    layer.0  attention.output yes
        transformer.block.ff_proj.weight               32x8   layer.0  feedforward      yes
        transformer.block.ff_out.weight                8x16   layer.0  feedforward      yes
        transformer.ff_out.weight                      50x8   -        head             no
    """,
    "a list of heads is no list of blocks": """
        token_embedding_table.weight                   50x8   -        embedding        no
        sa.heads.0.key.weight                          4x8    layer.0  attention.key    yes
        sa.heads.0.query.weight                        4x8    layer.0  attention.query  yes
        sa.heads.0.tril                                16x16  layer.0  buffer           no
        sa.heads.1.key.weight                          4x8    layer.0  attention.key    yes
        sa.heads.1.query.weight                        4x8    layer.0  attention.query  yes
        sa.proj.weight                                 8x8    layer.0  attention.output yes
        ffwd.net.0.weight                              32x8   layer.0  feedforward      yes
        ffwd.net.2.weight                              8x32   layer.0  feedforward      yes
        lm_head.weight                                 50x8   -        head             no
    """,
    "steps of a projection within attention are no blocks": """
        to_qkv.weight                                  24x8   layer.0  attention.qkv    yes
        to_out.0.weight                                8x8    layer.0  attention.output yes
        to_out.0.bias                                  8      layer.0  attention.output yes
        net.1.weight                                   32x8   layer.0  other            yes
        net.4.weight                                   8x32   layer.0  other            yes
    """,
    "experts of an unnumbered block": """
        model.embed_tokens.weight                      50x8   -        embedding        no
        model.block.self_attn.q_proj.weight            8x8    layer.0  attention.query  yes
        model.block.self_attn.k_proj.weight            8x8    layer.0  attention.key    yes
        model.block.moe.gate.weight                    4x8    layer.0  router           yes
        model.block.moe.experts.0.w1.weight            16x8   layer.0  experts          yes
        model.block.moe.experts.3.w2.weight            8x16   layer.0  experts          yes
        model.norm.weight                              8      -        norm             no
    """,
    "an unnumbered encoder beside a numbered decoder": """
        encoder.embed_tokens.weight                    50x8   -         embedding        no
        encoder.pos_embed                              16x8   -         position         no
        encoder.self_attn.q_proj.weight                8x8    encoder.0 attention.query  yes
        encoder.self_attn.k_proj.weight                8x8    encoder.0 attention.key    yes
        encoder.mlp.0.weight                           32x8   encoder.0 feedforward      yes
        encoder.mlp.2.weight                           8x32   encoder.0 feedforward      yes
        decoder.layers.0.self_attn.q_proj.weight       8x8    decoder.0 attention.query  yes
        decoder.layers.1.fc1.weight                    32x8   decoder.1 feedforward      yes
        decoder.norm.weight                            8      -         norm             no
    """,
    "encoder and decoder without numbers": """
        encoder.attn.in_proj_weight                    24x8   encoder.0 attention.qkv    yes
        encoder.ffn.0.weight                           32x8   encoder.0 feedforward      yes
        decoder.attn.in_proj_weight                    24x8   decoder.0 attention.qkv    yes
        decoder.cross_attn.in_proj_weight              24x8   decoder.0 attention.qkv    yes
        decoder.ffn.0.weight                           32x8   decoder.0 feedforward      yes
        generator.weight                               50x8   -         head             no
    """,
    "a front end of convolutions before an unnumbered block": """
        frontend.0.weight                              8x1x4  -         other            no
        frontend.2.weight                              8x8x4  -         other            no
        encoder.attention.query.weight                 8x8    layer.0   attention.query  yes
        encoder.attention.key.weight                   8x8    layer.0   attention.key    yes
        encoder.feed_forward.0.weight                  32x8   layer.0   feedforward      yes
    """,
    "attention that pools numbered blocks is not one of them": """
        blocks.0.attn.qkv.weight                       24x8   layer.0   attention.qkv    yes
        blocks.1.mlp.fc1.weight                        32x8   layer.1   feedforward      yes
        attn_pool.q.weight                             8x8    -         attention.query  no
        attn_pool.kv.weight                            16x8   -         attention.qkv    no
        attn_pool.mlp.fc1.weight                       32x8   -         feedforward      no
    """,
    "a projector that attends is no block beside numbered ones": """
        projector.cross_attn.q_proj.weight             8x8    -         attention.query  no
        projector.cross_attn.k_proj.weight             8x8    -         attention.key    no
        projector.feed_forward.linear_in.weight        32x8   -         feedforward      no
        language_model.layers.0.self_attn.q_proj.weight 8x8   layer.0   attention.query  yes
    """,
    "a q-network is not attention": """
        q.weight                                       4x8    -         attention.query  no
        net.0.weight                                   8x8    layer.0   other            yes
        net.2.weight                                   8x8    layer.2   other            yes
    """,
    "tensorflow 2, one unnumbered block": """
        model/attention/_query_dense/kernel/@          8x2x4  layer.0   attention.query  yes
        model/attention/_key_dense/kernel/@            8x2x4  layer.0   attention.key    yes
        model/ffn/layer-0/kernel/@                     8x32   layer.0   feedforward      yes
        model/ffn/layer-0/kernel/.OPTIMIZER_SLOT/optimizer/m/@ 8x32 - optimizer no
    """,
    "parametrizations of torch": """
        layers.0.self_attn.q_proj.weight               8x8    layer.0  attention.query  yes
        layers.0.mlp.fc.parametrizations.weight.0._u   8      layer.0  buffer           no
        layers.0.mlp.fc.parametrizations.weight.0._v   8      layer.0  buffer           no
        layers.0.mlp.fc.parametrizations.weight.original 8x8  layer.0  feedforward      yes
        layers.0.mlp.out.parametrizations.weight.original1 8x8 layer.0 feedforward      yes
    """,
    "statistics and sentinels": """
        layers.0.self_attn.q_proj.weight               8x8    layer.0  attention.query  yes
        layers.0.conv.batch_norm.running_mean          8      layer.0  buffer           no
        layers.0.conv.batch_norm.running_var           8      layer.0  buffer           no
        layers.0.conv.batch_norm.num_batches_tracked   -      layer.0  buffer           no
        layers.0.conv.batch_norm.weight                8      layer.0  norm             yes
        layers.0.self_attn.rotary_emb.cos_cached       1x1x16x4 layer.0 buffer          no
        layers.0.self_attn.gate                        1      layer.0  other            no
        final_logits_bias                              1x50   -        buffer           no
        pos_encoder.pe                                 16x1x8 -        buffer           no
        sinusoidal_positions.table                     16x8   -        buffer           no
        vocab_size                                     -      -        other            no
    """,
}


@pytest.mark.parametrize("case", TABLE)
def test_stored_names(case):
    table = TABLE[case].replace("/@", "/.ATTRIBUTES/VARIABLE_VALUE")
    rows = [line.split() for line in table.strip().splitlines()]
    shapes = {name: () if shape == "-" else tuple(map(int, shape.split("x"))) for name, shape, *_ in rows}
    readings = read_names({name: Tensor("F32", shape) for name, shape in shapes.items()})
    read = [[r.name, r.layer_name or "-", r.role, "yes" if r.counted else "no"] for r in readings.values()]
    assert read == [[name, *expected] for name, _, *expected in rows]


@pytest.mark.parametrize("case", [case for case in TABLE if "unnumbered" in case or "one block" in case])
@pytest.mark.parametrize("change", ["model.{}", "app.model.{}", "/"])
def test_wrappers_change_nothing_for_unnumbered_blocks(case, change):
    rows = [line.split() for line in TABLE[case].strip().splitlines()]
    index = {
        name: Tensor("F32", () if shape == "-" else tuple(map(int, shape.split("x"))))
        for name, shape, *_ in rows
    }
    rename = (lambda name: name.replace(".", "/")) if change == "/" else change.format
    before, after = read_names(index), read_names({rename(name): tensor for name, tensor in index.items()})
    assert [after[rename(name)] for name in index] == [
        replace(r, name=rename(r.name)) for r in before.values()
    ]


def test_the_dtype_tells_what_the_name_does_not():
    index = {
        "h.0.attn.c_attn.weight": Tensor("BF16", (8, 24)),
        "h.0.attn.bias": Tensor("BOOL", (16, 16)),
        "h.0.attn.allowed": Tensor("BOOL", (16, 16)),
        "h.0.attn.order": Tensor("I64", (16,)),
        "h.0.mlp.c_fc.weight": Tensor("F8_E4M3", (8, 32)),
    }
    assert counted(read_names(index, include="all")) == {"h.0.attn.c_attn.weight", "h.0.mlp.c_fc.weight"}


# T5's published norm ----------------------------------------------------------------------------------


def expected_square(name: str, config) -> float:
    """The mean square of an entry at initialization, from the variances that T5 documents."""
    module = name.split(".")[-2]
    if "norm" in module:
        return 1.0
    return {
        "q": 1 / (config.d_model * config.d_kv),
        "k": 1 / config.d_model,
        "v": 1 / config.d_model,
        "o": 1 / (config.num_heads * config.d_kv),
        "wi": 1 / config.d_model,
        "wo": 1 / config.d_ff,
        "relative_attention_bias": 1 / config.d_model,
    }[module]


@pytest.mark.parametrize(
    ("include", "norm"), [("blocks", 470.8), ("encoder", 303.8), ("decoder", math.sqrt(470.8**2 - 303.8**2))]
)
def test_t5_base_at_initialization_has_the_norm_of_the_paper(include, norm):
    config = transformers.T5Config(
        d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12, vocab_size=32128
    )
    with torch.device("meta"):
        model = transformers.T5ForConditionalGeneration(config)
    index = index_of(model)
    readings = read_names(index, include=include)
    squares: dict[str | None, float] = {}
    for name in counted(readings):
        layer = readings[name].layer_name
        squares[layer] = squares.get(layer, 0) + index[name].numel * expected_square(name, config)
    assert math.sqrt(sum(squares.values())) == pytest.approx(norm, abs=0.5)
    for layer, square in squares.items():
        each = 87.7 if str(layer).startswith("encoder") else 103.8
        assert math.sqrt(square) == pytest.approx(each, abs=0.1)


# What counts ------------------------------------------------------------------------------------------


@pytest.fixture
def t5() -> dict[str, Tensor]:
    return {
        name: Tensor("F32", shape)
        for name, shape in {
            "shared.weight": (50, 8),
            "encoder.embed_tokens.weight": (50, 8),
            "encoder.block.0.layer.0.SelfAttention.q.weight": (8, 8),
            "encoder.block.0.layer.0.scale": (1,),
            "encoder.final_layer_norm.weight": (8,),
            "decoder.block.0.layer.0.SelfAttention.q.weight": (8, 8),
            "decoder.block.0.layer.0.SelfAttention.masked_bias": (),
            "lm_head.weight": (50, 8),
            "optimizer.state.shared.weight.exp_avg": (50, 8),
        }.items()
    }


Q = "{}.block.0.layer.0.SelfAttention.q.weight"
TIED = {"encoder.embed_tokens.weight": "shared.weight", "lm_head.weight": "shared.weight"}


def test_scopes(t5):
    assert counted(read_names(t5)) == {Q.format("encoder"), Q.format("decoder")}
    assert counted(read_names(t5, include="encoder")) == {Q.format("encoder")}
    assert counted(read_names(t5, include="decoder")) == {Q.format("decoder")}
    never = {"decoder.block.0.layer.0.SelfAttention.masked_bias", "optimizer.state.shared.weight.exp_avg"}
    assert counted(read_names(t5, include="all")) == set(t5) - never
    assert counted(read_names(t5, include="all", aliases=TIED)) == set(t5) - never - set(TIED)


def test_reasons(t5):
    reasons = {r.name: r.reason for r in read_names(t5, include="encoder", aliases=TIED).values()}
    assert reasons == {
        "shared.weight": "embedding",
        "encoder.embed_tokens.weight": "tied to shared.weight",
        Q.format("encoder"): "in a block",
        "encoder.block.0.layer.0.scale": "scalar",
        "encoder.final_layer_norm.weight": "outside the blocks",
        Q.format("decoder"): "not in the encoder",
        "decoder.block.0.layer.0.SelfAttention.masked_bias": "buffer: mask",
        "lm_head.weight": "tied to shared.weight",
        "optimizer.state.shared.weight.exp_avg": "optimizer state",
    }


def test_select_takes_the_place_of_the_scope(t5):
    for include in INCLUDE_CHOICES:
        readings = read_names(t5, include=include, select=r"shared|embed|masked|scale$", aliases=TIED)
        assert counted(readings) == {"shared.weight", "encoder.block.0.layer.0.scale"}
        assert readings[Q.format("encoder")].reason == "not selected"
        assert readings["shared.weight"].reason == "selected"


def test_exclude_takes_away_from_either(t5):
    assert counted(read_names(t5, exclude=r"^decoder\.")) == {Q.format("encoder")}
    both = read_names(t5, select="shared|final", exclude="final")
    assert counted(both) == {"shared.weight"}
    assert both["encoder.final_layer_norm.weight"].reason == "excluded"
    assert read_names(t5, exclude="masked")[Q.format("encoder")].counted


@pytest.mark.parametrize("include", ["encoder", "decoder"])
def test_the_only_stack_is_what_any_scope_means(include):
    index = {"decoder.layers.0.self_attn.q_proj.weight": Tensor("F32", (8, 8))}
    (reading,) = read_names(index, include=include).values()
    assert reading.counted
    assert reading.layer_name == "layer.0"


def test_what_is_asked_for_and_not_there():
    clip = {f"{tower}.layers.0.attn.qkv.weight": Tensor("F32", (24, 8)) for tower in ("text", "vision")}
    with pytest.raises(InputError, match=r"'encoder'.*text, vision"):
        read_names(clip, include="encoder")
    assert counted(read_names(clip, include="encoder", select="text")) == {"text.layers.0.attn.qkv.weight"}
    with pytest.raises(InputError, match=r"'everything'.*blocks, encoder, decoder, all"):
        read_names(clip, include="everything")
    with pytest.raises(InputError, match=r"select '\(' is not a regular expression"):
        read_names(clip, select="(")
    with pytest.raises(InputError, match=r"exclude 'a\{2,1\}' is not a regular expression"):
        read_names(clip, exclude="a{2,1}")


def test_both_encoders_of_a_model_with_two():
    towers = ("text_model.encoder", "vision_model.encoder")
    index = {f"{tower}.layers.0.attn.qkv.weight": Tensor("F32", (24, 8)) for tower in towers}
    readings = read_names(index, include="encoder")
    assert counted(readings) == set(index)
    assert {r.stack for r in readings.values()} == {"text_model", "vision_model"}


# Whatever comes ---------------------------------------------------------------------------------------

WORDS = (
    *("model", "encoder", "decoder", "layers", "layer", "h", "block", "blocks_0", "layer_1", "0", "1", "7"),
    *("attention", "self", "attn", "q", "query", "key_value", "output", "dense", "mlp", "fc1", "norm"),
    *("LayerNorm", "embeddings", "position", "wpe", "lm_head", "weight", "bias", "kernel", "mask"),
    *("W_Q", "W_K", "heads", "to_out", "net", "experts", "block"),
    *("optimizer", "exp_avg", "rotary_emb", "inv_freq", "99999999999999", "\N{ARABIC-INDIC DIGIT THREE}"),
)
anything = st.one_of(st.text(max_size=30), st.lists(st.sampled_from(WORDS), max_size=7).map(".".join))
tensors = st.builds(
    Tensor, st.sampled_from(sorted(STORAGE)), st.lists(st.integers(0, 9), max_size=4).map(tuple)
)


@settings(deadline=None)
@given(st.dictionaries(anything, tensors, max_size=12), st.sampled_from(["blocks", "all"]), st.randoms())
def test_every_name_is_read_whatever_the_order(index: dict[str, Tensor], include: str, rng: random.Random):
    readings = read_names(index, include=include)
    assert list(readings) == list(index)
    for name, reading in readings.items():
        assert reading.name == name
        assert reading.role in ROLES
        assert reading.reason
        assert (reading.layer is None) == (reading.stack == "") == (reading.layer_name is None)
        assert not (reading.counted and reading.role in ("buffer", "optimizer"))
    order = list(index)
    rng.shuffle(order)
    assert read_names({name: index[name] for name in order}, include=include) == readings


@pytest.mark.parametrize("order", list(permutations(["1/0/Q", "0/0", "0/Q"])))
def test_of_two_lists_that_attend_the_first_takes_what_lies_beside_them(order: tuple[str, ...]):
    readings = read_names({name: Tensor("F32", (8, 8)) for name in order})
    assert {name: reading.layer_name for name, reading in readings.items()} == {
        "0/Q": "layer.0",
        "1/0/Q": "1.0",
        "0/0": "layer.0",
    }


def test_a_neighbor_s_list_is_not_taken_for_granted():
    """Names in the list of the name before them are read by a shorter way, which must agree."""
    names = ["layers.0.attn.q.weight", "layers.\N{ARABIC-INDIC DIGIT THREE}.attn.q.weight", "layers.x.attn.q"]
    names += ["layers.0/attn/q", "layers.12345678901.attn.q", "layers..attn.q", "layers.1"]
    together = read_names({name: Tensor("F32", (8, 8)) for name in names})
    assert [r.layer for r in together.values()] == [0, None, None, 0, None, None, 1]


def test_twenty_thousand_names_take_no_time():
    """54 ms where it was written; the bound is loose, for it must catch a slip and not a busy machine."""
    leaves = (
        "self_attn.q_proj",
        "self_attn.o_proj",
        "input_layernorm",
        *(f"mlp.experts.{e}.w1" for e in range(64)),
    )
    index = {
        f"model.layers.{layer}.{leaf}.weight": Tensor("BF16", (8, 8))
        for layer in range(300)
        for leaf in leaves
    }
    assert len(index) > 20_000
    times = []
    for _ in range(3):
        start = time.process_time()
        read_names(index)
        times.append(time.process_time() - start)
    assert min(times) < 0.3


def test_averaged_copies_and_quantisation_are_no_parameters():
    block = "layers.0.self_attn.q_proj"
    index = {
        f"model.{block}.weight": Tensor("F32", (4, 4)),
        f"ema_model.{block}.weight": Tensor("F32", (4, 4)),
        f"model.{block}.qweight": Tensor("I32", (4, 4)),
        f"model.{block}.scales": Tensor("F16", (4, 4)),
        f"model.{block}.weight_scale": Tensor("F32", (4, 1)),
        f"model.{block}.weight.absmax": Tensor("F32", (9,)),
        f"model.{block}.weight.quant_map": Tensor("F32", (16,)),
        "model.layers.0.mlp.up_proj.weight": Tensor("I8", (4, 4)),
        "model.layers.0.mlp.down_proj.weight": Tensor("U8", (8, 1)),
    }
    counted = {name for name, reading in read_names(index).items() if reading.counted}
    assert counted == {f"model.{block}.weight", "model.layers.0.mlp.up_proj.weight"}
