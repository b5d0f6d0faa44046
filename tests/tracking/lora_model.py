"""A small transformer with LoRA layers that have the names, attributes and initialization of PEFT's."""

import torch
from torch import nn

SCALES = {"default": 4.0, "second": 0.5}


class Adapted(nn.Module):
    """A linear layer with adapters: y = Wx + Σ scale·BAx."""

    def __init__(self, base: nn.Linear, ranks: dict[str, int]) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(requires_grad=False)
        inner, outer = base.in_features, base.out_features
        self.lora_A = nn.ModuleDict(
            {name: nn.Linear(inner, rank, bias=False) for name, rank in ranks.items()}
        )
        self.lora_B = nn.ModuleDict(
            {name: nn.Linear(rank, outer, bias=False) for name, rank in ranks.items()}
        )
        self.scaling = {name: SCALES[name] for name in ranks}
        for up in self.lora_B.values():
            nn.init.zeros_(up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        updates = [self.scaling[name] * self.lora_B[name](self.lora_A[name](x)) for name in self.scaling]
        return self.base_layer(x) + sum(updates)

    def squares(self) -> dict[str, float]:
        """Adapter -> ‖scale·BA‖², from the product itself in float64."""
        return {
            name: (scale * self.lora_B[name].weight.double() @ self.lora_A[name].weight.double())
            .square()
            .sum()
            .item()
            for name, scale in self.scaling.items()
        }


class AdaptedEmbedding(nn.Module):
    """An embedding with an adapter, whose factors are bare parameters."""

    def __init__(self, base: nn.Embedding, rank: int) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(requires_grad=False)
        self.lora_embedding_A = nn.ParameterDict({"default": torch.zeros(rank, base.num_embeddings)})
        self.lora_embedding_B = nn.ParameterDict({"default": torch.randn(base.embedding_dim, rank)})
        self.scaling = {"default": SCALES["default"]}

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        update = self.lora_embedding_A["default"].T[tokens] @ self.lora_embedding_B["default"].T
        return self.base_layer(tokens) + self.scaling["default"] * update

    def squares(self) -> dict[str, float]:
        up, down = self.lora_embedding_B["default"].double(), self.lora_embedding_A["default"].double()
        return {"default": (self.scaling["default"] * up @ down).square().sum().item()}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        self.self_attn.q_proj = Adapted(nn.Linear(width, width), {"default": 2})
        self.self_attn.k_proj = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.mlp = nn.Module()
        self.mlp.up_proj = Adapted(nn.Linear(width, 2 * width), {"default": 2, "second": 3})
        self.mlp.down_proj = nn.Linear(2 * width, width).requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.self_attn.q_proj(x) @ self.self_attn.k_proj(x).mT, -1)
        x = x + weights @ x
        return x + self.mlp.down_proj(torch.relu(self.mlp.up_proj(x)))


class LoraModel(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed_tokens = AdaptedEmbedding(nn.Embedding(11, width), 2)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def squares(self) -> dict[str, float]:
        """Adapted module -> ‖scale·BA‖²; with the adapter behind it unless it is the default one."""
        return {
            name if adapter == "default" else f"{name}.{adapter}": square
            for name, module in self.named_modules()
            if isinstance(module, Adapted | AdaptedEmbedding)
            for adapter, square in module.squares().items()
        }
