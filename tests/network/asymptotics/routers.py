"""Small models whose experts are chosen by sigmoids that are all equal in the limit."""

from typing import Any

import torch
from network.asymptotics.architectures import Double
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoModel

SIZES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=48,
    moe_intermediate_size=24,
    vocab_size=50,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts=8,
    num_local_experts=8,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=0,
    head_dim=8,
    kv_lora_rank=8,
    q_lora_rank=12,
    qk_rope_head_dim=4,
    qk_nope_head_dim=8,
    v_head_dim=8,
    index_n_heads=2,
    index_head_dim=8,
    index_topk=4,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
ROUTERS = [
    "deepseek_v3",
    "deepseek_v32",
    "dots1",
    "exaone_moe",
    "flint",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "hy_v3",
    "minimax_m2",
    "muse_spark_text",
    "axk2",
    "hy_v4",
    "phimoe",
]


def router(name: str) -> tuple[nn.Module, Tensor]:
    kind = CONFIG_MAPPING[name]
    known = set(dir(kind)) | set(getattr(kind, "__dataclass_fields__", {}))
    config = kind(**{key: value for key, value in SIZES.items() if key in known})
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation="eager", experts_implementation="eager")
    model = model.eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(3)
            if not bool(parameter.isfinite().all()):  # left as it was allocated
                parameter.copy_(0.3 * torch.randn_like(parameter))
        for buffer in model.buffers():
            if buffer.is_floating_point() and not bool(buffer.isfinite().all()):
                buffer.zero_()
    return model, torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(1))


class OrderedSigmoid(Double):
    """A sigmoid with its limits and its order, whose distance from them falls slowly enough for float64.

    Near 1 by a logarithm; near 0 by a high power, so that of several that vanish the largest is left, as it should.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "sigmoid":
            growth = torch.log1p(args[0].abs())
            return torch.where(args[0] >= 0, 1 - 1e-7 / (1 + growth), torch.exp(-40 * growth))
        return super().__torch_function__(func, types, args, kwargs)
