"""One small training run under tracking, as its settings say: any number of ranks, any wrapper, a fault or none.

A step's batch is the same for any number of ranks: each takes its share of the same sequences.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from normgrowth.tracking.tracker import NormTracker

STEPS, BATCH, LENGTH, VOCABULARY, WIDTH = 8, 16, 8, 32, 16
CHANGED = 5  # the step from which on data differ, where they do
CLIP = 0.05


@dataclass(frozen=True)
class Settings:
    """wrapper: "" is a plain model. precision: "autocast", or "policy" of FSDP2. fault: "" trains correctly."""

    ranks: int = 1
    wrapper: str = ""
    optimizer: str = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.1
    implementation: str = "for-loop"
    dtype: str = "float32"
    precision: str = ""
    eps: float = 1e-8
    amsgrad: bool = False
    include: str = "all"
    optimizer_state: bool = False
    attention: str = "split"
    accumulate: int = 1
    dropout: float = 0.0
    clip: bool = False
    threshold: float = CLIP
    record_clipping: bool = False
    compiled: bool = False
    checkpointing: bool = False
    seed: int = 0
    every: int = 1
    fault: str = ""


class Attention(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "fused":
            self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "fused":
            q, k, v = self.c_attn(x).chunk(3, -1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (t.unflatten(-1, (-1, 8)).transpose(1, 2) for t in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, kind: str, dropout: float, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention(kind)
        self.norm2, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.checkpointing:
            return torch.utils.checkpoint.checkpoint(self.run, x, use_reentrant=False)
        return self.run(x)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm2(x)))))


class Model(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            Block(settings.attention, settings.dropout, settings.checkpointing) for _ in range(3)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if settings.fault not in ("untied", "own head"):
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def model_of(settings: Settings) -> Model:
    torch.manual_seed(settings.seed)
    model = Model(settings)
    nn.init.normal_(model.embedding.weight, 0.0, 0.2)
    if settings.fault == "untied":
        with torch.no_grad():
            model.head.weight.copy_(model.embedding.weight)
    if settings.fault == "layer is larger":
        with torch.no_grad():
            for p in model.layers[1].parameters():
                p.mul_(1.001)
    return model.to(getattr(torch, settings.dtype))


def wrapped(model: Model, settings: Settings) -> nn.Module:
    if settings.wrapper == "ddp":
        return DistributedDataParallel(model)
    if settings.wrapper == "fsdp":
        mesh = init_device_mesh("cpu", (settings.ranks,))
        mixed = settings.precision == "policy"
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    if settings.wrapper == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if settings.wrapper == "tp":
        mesh = init_device_mesh("cpu", (settings.ranks,))
        column, row = ColwiseParallel(), RowwiseParallel()
        names = {f"attention.{name}": column for name in ("q_proj", "k_proj", "v_proj")}
        plan = {**names, "attention.o_proj": row, "up": column, "down": row}
        for layer in model.layers:
            parallelize_module(layer, mesh, plan)
        return model
    return model


def optimizer_of(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    named = list(model.named_parameters())
    if settings.fault == "missing":
        named = [(name, p) for name, p in named if not name.endswith("layers.1.up.weight")]
    matrices = [p for _, p in named if p.dim() > 1]
    vectors = [p for _, p in named if p.dim() == 1]
    decays, others = (vectors, matrices) if settings.fault == "decay" else (matrices, vectors)
    groups = [
        {"params": decays, "weight_decay": settings.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.lr, momentum=0.9)
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}}.get(
        settings.implementation, {"foreach": False}
    )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(
        groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, amsgrad=settings.amsgrad, **how
    )


def batch_of(step: int, rank: int, settings: Settings) -> torch.Tensor:
    """This rank's share of the sequences of a step."""
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(step))
    tokens[:, 1::2] = (tokens[:, ::2] + 1) % VOCABULARY  # something to learn
    data_parallel = settings.ranks > 1 and settings.wrapper != "tp"
    share = tokens[rank :: settings.ranks] if data_parallel else tokens
    if settings.fault == "data" and rank == settings.ranks - 1 and step >= CHANGED:
        return batch_of(step + 1, rank, Settings(settings.ranks, settings.wrapper))
    return share


def change_gradients(model: nn.Module, settings: Settings) -> None:
    """Plant the faults of gradients."""
    faults = {
        "sum": ("", settings.ranks),
        "embedding is doubled": ("embedding.", 2),
        "layer is doubled": ("layers.1.", 2),
        "layer is negated": ("layers.1.", -1),
    }
    if settings.fault not in faults:
        return
    part, factor = faults[settings.fault]
    for name, p in model.named_parameters():
        if part in name:
            p.grad *= factor


def clip(model: nn.Module, settings: Settings) -> torch.Tensor:
    if settings.fault != "local_clip":
        return nn.utils.clip_grad_norm_(model.parameters(), settings.threshold)
    own = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in own]))
    for g in own:
        g.mul_(CLIP / norm)
    return norm


def average_replicated(model: nn.Module) -> None:
    """Tensor parallelism leaves whole gradients as partial sums."""
    for p in model.parameters():
        if isinstance(p.grad, DTensor) and any(not q.is_shard() for q in p.grad.placements):
            p.grad = p.grad.redistribute(
                placements=[q if q.is_shard() else Replicate() for q in p.grad.placements]
            )


def train(settings: Settings, out: Path, steps: int = STEPS) -> None:
    rank = dist.get_rank() if settings.ranks > 1 else 0
    model = wrapped(model_of(settings), settings)
    optimizer = optimizer_of(model, settings)
    called = torch.compile(model) if settings.compiled else model
    factor = 1 if settings.fault == "accumulation" else settings.accumulate
    with NormTracker(
        model,
        optimizer,
        every=settings.every,
        include=settings.include,
        optimizer_state=settings.optimizer_state,
        out=out,
    ) as tracker:
        for step in range(1, steps + 1):
            torch.manual_seed(1000 * step + rank + (500 if settings.fault == "dropout" else 0))
            optimizer.zero_grad()
            parts = batch_of(step, rank, settings).chunk(settings.accumulate)
            for i, tokens in enumerate(parts):
                last = i == len(parts) - 1
                unsynced = settings.wrapper == "ddp" and not last
                mixed = settings.precision == "autocast"
                with (
                    model.no_sync() if unsynced else nullcontext(),
                    torch.autocast("cpu", torch.bfloat16, enabled=mixed),
                ):
                    logits = called(tokens)[:, :-1].flatten(0, 1).float()
                    loss = cross_entropy(logits, tokens[:, 1:].flatten()) / factor
                    loss.backward()
            change_gradients(model, settings)
            if settings.clip:
                norm = clip(model, settings)
                if settings.record_clipping:
                    tracker.record_clipping(norm, settings.threshold)
            optimizer.step()
