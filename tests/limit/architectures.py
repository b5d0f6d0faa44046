"""Small random models of many architectures, what to feed them, and arithmetic in which they can be scaled.

Weights are random, biases are not zero and gains are not one, so that no term is missing by accident.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

SIZES = dict(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=64, vocab_size=50)
GROUPED = dict(**SIZES, num_key_value_heads=2)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
GPT = dict(n_layer=2, n_embd=32, n_head=4, vocab_size=50, **TOKENS)
T5 = dict(num_layers=2, d_model=32, d_kv=8, num_heads=4, d_ff=64, vocab_size=50, decoder_start_token_id=0)
BART = dict(
    encoder_layers=2,
    decoder_layers=2,
    d_model=32,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    vocab_size=50,
    max_position_embeddings=64,
    **TOKENS,
)
DEBERTA = dict(
    relative_attention=True,
    pos_att_type=["c2p", "p2c"],
    max_relative_positions=16,
    position_buckets=8,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
)
IMAGES = {k: v for k, v in SIZES.items() if k != "vocab_size"} | dict(image_size=16, patch_size=4)


def made(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of transformers, built when it is asked for."""
    return lambda: getattr(hf, kind)(getattr(hf, config + "Config")(**options))


def encoder(norm_first: bool, activation: str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(
        32, 4, 64, batch_first=True, norm_first=norm_first, activation=activation
    )
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "BERT": made("BertModel", "Bert", **SIZES),
    "BERT masked LM": made("BertForMaskedLM", "Bert", **SIZES),
    "RoBERTa": made("RobertaModel", "Roberta", **SIZES),
    "ALBERT": made("AlbertModel", "Albert", **SIZES, embedding_size=16),
    "DistilBERT": made(
        "DistilBertModel", "DistilBert", n_layers=2, dim=32, n_heads=4, hidden_dim=64, vocab_size=50
    ),
    "ELECTRA": made("ElectraModel", "Electra", **SIZES, embedding_size=16),
    "DeBERTa-v2": made("DebertaV2Model", "DebertaV2", **SIZES, **DEBERTA),
    "ModernBERT": made("ModernBertModel", "ModernBert", **SIZES, **TOKENS, cls_token_id=1, sep_token_id=2),
    "XLNet": made("XLNetModel", "XLNet", n_layer=2, d_model=32, n_head=4, d_inner=64, vocab_size=50),
    "T5 encoder": made("T5EncoderModel", "T5", **T5),
    "T5 encoder, gated": made("T5EncoderModel", "T5", **T5, feed_forward_proj="gated-gelu"),
    "T5": made("T5Model", "T5", **T5),
    "BART": made("BartModel", "Bart", **BART, decoder_start_token_id=2),
    "mBART": made("MBartModel", "MBart", **BART),
    "Pegasus": made("PegasusModel", "Pegasus", **BART),
    "Marian": made("MarianModel", "Marian", **BART, decoder_start_token_id=0),
    "GPT-2": made("GPT2Model", "GPT2", **GPT),
    "GPT-2 LM": made("GPT2LMHeadModel", "GPT2", **GPT),
    "GPT-Neo": made(
        "GPTNeoModel",
        "GPTNeo",
        num_layers=2,
        hidden_size=32,
        num_heads=4,
        vocab_size=50,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        **TOKENS,
    ),
    "GPT-NeoX": made("GPTNeoXModel", "GPTNeoX", **SIZES, **TOKENS),
    "GPT-J": made("GPTJModel", "GPTJ", **GPT, rotary_dim=4),
    "OPT": made(
        "OPTModel",
        "OPT",
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_dim=64,
        vocab_size=50,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
    ),
    "BLOOM": made("BloomModel", "Bloom", n_layer=2, hidden_size=32, n_head=4, vocab_size=50, **TOKENS),
    "MPT": made("MptModel", "Mpt", n_layers=2, d_model=32, n_heads=4, vocab_size=50, max_seq_len=32),
    "Falcon": made(
        "FalconModel",
        "Falcon",
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        vocab_size=50,
        **TOKENS,
    ),
    "Llama": made("LlamaModel", "Llama", **GROUPED),
    "Llama LM": made("LlamaForCausalLM", "Llama", **GROUPED, tie_word_embeddings=True),
    "Mistral": made("MistralModel", "Mistral", **GROUPED, sliding_window=4),
    "Qwen2": made("Qwen2Model", "Qwen2", **GROUPED),
    "Qwen3": made("Qwen3Model", "Qwen3", **GROUPED, head_dim=8),
    "Gemma": made("GemmaModel", "Gemma", **GROUPED, head_dim=8),
    "Gemma 2": made("Gemma2Model", "Gemma2", **GROUPED, head_dim=8),
    "Gemma 3": made("Gemma3TextModel", "Gemma3Text", **GROUPED, head_dim=8, sliding_window=4),
    "OLMo": made("OlmoModel", "Olmo", **GROUPED, **TOKENS),
    "OLMo 2": made("Olmo2Model", "Olmo2", **GROUPED, **TOKENS),
    "Phi": made("PhiModel", "Phi", **SIZES, **TOKENS),
    "Phi-3": made("Phi3Model", "Phi3", **GROUPED, **TOKENS),
    "StableLM": made("StableLmModel", "StableLm", **GROUPED, **TOKENS),
    "Starcoder2": made("Starcoder2Model", "Starcoder2", **GROUPED, **TOKENS),
    "Cohere": made("CohereModel", "Cohere", **GROUPED, **TOKENS),
    "Granite": made("GraniteModel", "Granite", **GROUPED, **TOKENS),
    "Persimmon": made("PersimmonModel", "Persimmon", **SIZES, **TOKENS),
    "ViT": made("ViTModel", "ViT", **IMAGES),
    "DINOv2": made("Dinov2Model", "Dinov2", **IMAGES),
    "nn.TransformerEncoder, post-norm": lambda: encoder(False, "relu"),
    "nn.TransformerEncoder, pre-norm": lambda: encoder(True, "gelu"),
    "nn.LSTM": lambda: nn.LSTM(16, 32, 2, batch_first=True),
    "nn.GRU": lambda: nn.GRU(16, 32, 2, batch_first=True),
}


# Without fused attention; transformers says so too, and a test asks it.
EAGER_ONLY = {"DeBERTa-v2", "XLNet", "GPT-Neo", "GPT-J", "BLOOM", "MPT", "Gemma 2"}
PLAIN = {name for name in MODELS if name.startswith("nn.")}  # of torch itself
IMAGE = {"ViT", "DINOv2"}

# What the second block adds to the residual stream: by attention, and by the feedforward layer.
USUAL = "layers.1.self_attn", "layers.1.mlp"
BERT_LIKE = "encoder.layer.1.attention.output.dense", "encoder.layer.1.output.dense"
BART_LIKE = "decoder.layers.1.encoder_attn", "decoder.layers.1.fc2"
T5_LIKE = "encoder.block.1.layer.0.SelfAttention", "encoder.block.1.layer.1.DenseReluDense"
NORMED = "layers.1.post_attention_layernorm", "layers.1.post_feedforward_layernorm"
ALBERT_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
BRANCHES: dict[str, tuple[str | None, str | None]] = {
    **dict.fromkeys(MODELS, USUAL),
    **dict.fromkeys(["BERT", "RoBERTa", "ELECTRA", "DeBERTa-v2"], BERT_LIKE),
    **dict.fromkeys(["BART", "mBART", "Pegasus", "Marian"], BART_LIKE),
    **dict.fromkeys(["T5 encoder", "T5 encoder, gated"], T5_LIKE),
    **dict.fromkeys(["GPT-2", "GPT-Neo", "GPT-J"], ("h.1.attn", "h.1.mlp")),
    **dict.fromkeys(["BLOOM", "Falcon"], ("h.1.self_attention.dense", "h.1.mlp.dense_4h_to_h")),
    **dict.fromkeys(["Gemma 2", "Gemma 3", "OLMo 2"], NORMED),
    **dict.fromkeys(["GPT-NeoX", "ViT"], ("layers.1.attention", "layers.1.mlp")),
    **dict.fromkeys(["nn.LSTM", "nn.GRU"], (None, None)),
    "BERT masked LM": ("bert." + BERT_LIKE[0], "bert." + BERT_LIKE[1]),
    "ALBERT": (f"{ALBERT_LAYER}.attention.dense", f"{ALBERT_LAYER}.ffn_output"),
    "DistilBERT": ("transformer.layer.1.attention", "transformer.layer.1.ffn"),
    "ModernBERT": ("layers.1.attn", "layers.1.mlp"),
    "XLNet": (None, "layer.1.ff.layer_2"),
    "T5": ("decoder.block.1.layer.1.EncDecAttention", "decoder.block.1.layer.2.DenseReluDense"),
    "GPT-2 LM": ("transformer.h.1.attn", "transformer.h.1.mlp"),
    "OPT": ("decoder.layers.1.self_attn", "decoder.layers.1.fc2"),
    "MPT": ("blocks.1.attn", "blocks.1.ffn.down_proj"),
    "Llama LM": ("model.layers.1.self_attn", "model.layers.1.mlp"),
    "DINOv2": ("encoder.layer.1.layer_scale1", "encoder.layer.1.layer_scale2"),
    "nn.TransformerEncoder, post-norm": ("layers.1.self_attn", "layers.1.linear2"),
    "nn.TransformerEncoder, pre-norm": ("layers.1.self_attn", "layers.1.linear2"),
}


@dataclass(frozen=True)
class Case:
    """A model, and a way to run it."""

    model: str
    attention: str = "eager"
    padding: bool = False
    seed: int = 0

    def __str__(self) -> str:
        parts = [self.model, self.attention, "padded" * self.padding, f"seed {self.seed}" * bool(self.seed)]
        return "-".join(filter(None, parts))

    @property
    def options(self) -> dict[str, Any]:
        """Attention patterns are asked for where they exist as tensors."""
        return dict(output_attentions=True) if self.attention == "eager" and self.model not in PLAIN else {}


def build(case: Case) -> nn.Module:
    """In float64, with no cache of keys to fill."""
    torch.manual_seed(case.seed)
    model = MODELS[case.model]().eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(3)
    if isinstance(model, hf.PreTrainedModel):
        model.set_attn_implementation(case.attention)
        model.config.use_cache = False
    return model


def cases(name: str) -> list[Case]:
    """All ways to run a model."""
    fused = name not in EAGER_ONLY | PLAIN
    return [
        Case(name, attention, padding)
        for attention in (["eager", "sdpa"] if fused else ["eager"])
        for padding in ([False] if name in IMAGE else [False, True])
    ]


@dataclass(frozen=True)
class Inputs:
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def inputs(case: Case, model: nn.Module) -> Inputs:
    """Two sequences; with padding the second one ends early."""
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    if case.model in IMAGE:
        return Inputs((noise(2, 3, 16, 16),))
    hidden = torch.zeros(2, 7, dtype=torch.bool)
    hidden[1, 5:] = case.padding
    if isinstance(model, nn.TransformerEncoder):
        return Inputs((noise(2, 7, 32),), dict(src_key_padding_mask=hidden) if case.padding else {})
    if isinstance(model, nn.RNNBase):
        steps = noise(2, 7, 16)
        lengths = (~hidden).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(steps, lengths, batch_first=True)
        return Inputs((packed if case.padding else steps,))
    ids = torch.randint(3, 50, (2, 7), generator=generator)
    kwargs: dict[str, Any] = dict(input_ids=ids)
    if model.config.is_encoder_decoder:
        kwargs["decoder_input_ids"] = ids[:, :5].clone()
    if case.padding:
        kwargs["attention_mask"] = (~hidden).long()
        ids[hidden] = getattr(model.config, "pad_token_id", None) or 0
    return Inputs(kwargs=kwargs)


class Double(TorchFunctionMode):
    """Casts to float32, as norms make them, stay in float64: scaled values would overflow there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(wide, args), **{key: wide(value) for key, value in (kwargs or {}).items()})
