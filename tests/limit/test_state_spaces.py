"""State-space and linear-attention models: a decay that falls to 0 forgets at once, one that is fixed stays.

Every output of every submodule against the network with all but the fixed parameters times c.
"""

import pytest
import torch
import transformers as hf
from limit.architectures import Inputs
from limit.comparison import compared

from normgrowth.errors import NoLimit
from normgrowth.limit.saturated import saturated

USUAL = dict(
    hidden_size=32, num_hidden_layers=2, vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2
)
ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, head_dim=8)
MAMBA = dict(state_size=8, conv_kernel=4, expand=2)
HEADS = dict(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4)
DELTA = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
MODELS = {
    "mamba": (hf.MambaModel, hf.MambaConfig, dict(**MAMBA, time_step_rank=4), ["*.A_log"]),
    "falcon_mamba": (hf.FalconMambaModel, hf.FalconMambaConfig, dict(**MAMBA, time_step_rank=4), ["*.A_log"]),
    "mamba2": (
        hf.Mamba2Model,
        hf.Mamba2Config,
        dict(**MAMBA, head_dim=16, num_heads=4, n_groups=1, chunk_size=4),
        ["*.A_log"],
    ),
    "rwkv": (
        hf.RwkvModel,
        hf.RwkvConfig,
        dict(attention_hidden_size=32, context_length=64),
        ["*.time_decay"],
    ),
    "bamba": (hf.BambaModel, hf.BambaConfig, dict(**ATTENTION, **HEADS, attn_layer_indices=[1]), ["*.A_log"]),
    "qwen3_next": (
        hf.Qwen3NextModel,
        hf.Qwen3NextConfig,
        dict(
            **ATTENTION,
            **DELTA,
            num_experts=2,  # all chosen: how many tokens an expert gets does not depend on c
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            layer_types=["linear_attention", "full_attention"],
        ),
        ["*.A_log"],
    ),
}
IDS = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.usefixtures("one_thread")


def build(name):
    kind, config, options, fixed = MODELS[name]
    torch.manual_seed(0)
    model = kind(config(**USUAL, **options)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.nan_to_num() * (3 if parameter.dim() > 1 else 1))
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    if name != "rwkv":
        model.set_attn_implementation("eager")
        model.config._experts_implementation = "eager"  # the fused kernel has no float64
    model.config.use_cache = False
    return model, fixed


@pytest.mark.parametrize("name", MODELS)
def test_every_output_of_every_submodule(name):
    model, fixed = build(name)
    limit = saturated(model, fixed=fixed)
    rows, _ = compared(limit, Inputs(kwargs=dict(input_ids=IDS)))
    assert limit.degrees[""] == 1
    wrong = [row for row in rows if not row.doubt and not row.agrees(1e-6, 1e-4, 0.01)]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("name", MODELS)
def test_without_it_the_refusal_names_the_parameter(name):
    model, fixed = build(name)
    with pytest.raises(NoLimit) as caught:
        saturated(model)(IDS)
    assert f"fixed=['{fixed[0]}']" in str(caught.value)
    assert all(parameter.endswith(fixed[0][2:]) for parameter in caught.value.parameters)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_rate_that_falls_to_nothing_needs_not_be_fixed(name):
    """A = -exp(A_log) goes to 0 where A_log is negative: the state forgets nothing."""
    model, _ = build(name)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("A_log"):
                parameter.copy_(-0.5 - parameter.abs())
    limit = saturated(model)
    rows, _ = compared(limit, Inputs(kwargs=dict(input_ids=IDS)))
    wrong = [row for row in rows if not row.doubt and not row.agrees(1e-6, 1e-4, 0.01)]
    assert not wrong, "\n".join(map(str, wrong))
