"""One run of a small GPT-2, Llama or T5 under tracking: other models, optimizers and loops than in `training`."""

from contextlib import nullcontext
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from normgrowth.tracking.tracker import NormTracker

BATCH, LENGTH, VOCABULARY, WIDTH, LAYERS = 8, 16, 64, 32, 3
PADDING = -100
LATE = 6  # the step from which on a late fault acts


@dataclass(frozen=True)
class Settings:
    """wrapper: "" is a plain model. fault: "" trains correctly."""

    model: str = "llama"
    ranks: int = 1
    wrapper: str = ""
    optimizer: str = "adamw"
    lr: float = 1e-3
    decay: float = 0.05
    momentum: float = 0.9
    attention: str = "sdpa"
    dtype: str = "float32"
    autocast: bool = False
    accumulate: int = 1
    checkpointing: bool = False
    dropout: float = 0.0
    padded: bool = False
    schedule: bool = False
    clip: float = 0.0
    seed: int = 7
    steps: int = 12
    every: int = 1
    fault: str = ""


def model_of(settings: Settings) -> nn.Module:
    torch.manual_seed(settings.seed)
    if settings.model == "gpt2":
        config = GPT2Config(
            bos_token_id=None,
            eos_token_id=None,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=4,
            n_positions=LENGTH,
            vocab_size=VOCABULARY,
            resid_pdrop=settings.dropout,
            embd_pdrop=settings.dropout,
            attn_pdrop=settings.dropout,
            layer_norm_epsilon=1e-3 if settings.fault == "epsilon of the norms" else 1e-5,
            attn_implementation=settings.attention,
        )
        model: nn.Module = GPT2LMHeadModel(config)
    elif settings.model == "t5":  # with ReLU, and so large that rounding changes the sign of an input
        model = T5ForConditionalGeneration(
            T5Config(
                d_model=4 * WIDTH,
                d_kv=WIDTH,
                d_ff=16 * WIDTH,
                num_layers=LAYERS,
                num_heads=4,
                vocab_size=VOCABULARY,
                dropout_rate=0.0,
            )
        )
    else:
        config = LlamaConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 100.0 if settings.fault == "rope" else 10000.0,
            },
            attn_implementation=settings.attention,
        )
        model = LlamaForCausalLM(config)
    if settings.checkpointing:
        model.gradient_checkpointing_enable()
    return model.train().to(getattr(torch, settings.dtype))


def layers_of(model: nn.Module) -> nn.ModuleList:
    if isinstance(model, T5ForConditionalGeneration):
        return nn.ModuleList([*model.encoder.block, *model.decoder.block])
    return model.transformer.h if isinstance(model, GPT2LMHeadModel) else model.model.layers


def wrapped(model: nn.Module, settings: Settings) -> nn.Module:
    if settings.wrapper == "ddp":
        return DistributedDataParallel(model)
    if settings.wrapper == "fsdp":
        mesh = init_device_mesh("cpu", (settings.ranks,))
        for layer in layers_of(model):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return model


def optimizer_of(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if settings.optimizer == "muon":
        hidden = [p for name, p in named if p.dim() == 2 and "layers" in name]
        ns_steps = 2 if settings.fault == "steps of Muon" else 5
        return torch.optim.Muon(
            hidden, lr=settings.lr, weight_decay=settings.decay, momentum=settings.momentum, ns_steps=ns_steps
        )
    small = [p for _, p in named if p.dim() == 1]
    large = [(name, p) for name, p in named if p.dim() > 1]
    fast = [p for name, p in large if settings.fault == "rate of a layer" and ".1." in name]
    groups = [
        {"params": [p for _, p in large if not any(p is q for q in fast)], "weight_decay": settings.decay},
        {"params": small, "weight_decay": settings.decay if settings.fault == "decayed norms" else 0.0},
    ]
    if fast:
        groups.append({"params": fast, "weight_decay": settings.decay, "lr": 3 * settings.lr})
    kind, _, how = settings.optimizer.partition(" ")
    options = {"foreach": how == "foreach"} if how != "fused" else {"fused": True}
    if kind == "sgd":
        nesterov = settings.fault == "nesterov"
        return torch.optim.SGD(
            groups, lr=settings.lr, momentum=settings.momentum, nesterov=nesterov, **options
        )
    if kind == "rmsprop":
        return torch.optim.RMSprop(groups, lr=settings.lr, momentum=settings.momentum, **options)
    if kind == "adam":
        return torch.optim.Adam(groups, lr=settings.lr, **options)
    if kind == "adafactor":
        return torch.optim.Adafactor(groups, lr=settings.lr, **options)
    eps = 1e-3 if settings.fault == "epsilon of Adam" else 1e-8
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), eps=eps, **options)


def batch_of(step: int, settings: Settings) -> torch.Tensor:
    """All sequences of a step, for all ranks; with padding, of several lengths."""
    generator = torch.Generator().manual_seed(100 * settings.seed + step)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)
    tokens[:, 1::2] = (3 * tokens[:, ::2] + 1) % VOCABULARY  # something to learn
    labels = tokens.clone()
    if settings.padded:
        lengths = torch.randint(3, LENGTH, (BATCH, 1), generator=generator)
        labels[torch.arange(LENGTH) >= lengths] = PADDING
    return torch.stack([tokens, labels])


def loss_of(
    called: nn.Module, tokens: torch.Tensor, labels: torch.Tensor, count: float, settings: Settings
) -> torch.Tensor:
    """The sum over the tokens of this part, divided by the number of tokens that count."""
    shift = 2 if settings.fault == "labels shifted twice" else 1
    decoder = {"decoder_input_ids": tokens} if settings.model == "t5" else {}
    logits = called(input_ids=tokens, **decoder).logits[:, :-shift].float()
    total = cross_entropy(
        logits.flatten(0, 1), labels[:, shift:].flatten(), ignore_index=PADDING, reduction="sum"
    )
    return total / count


def rate_at(step: int, settings: Settings) -> float:
    if not settings.schedule:
        return 1.0
    step = step + 1 if settings.fault == "schedule" else step
    return min(step / 4, 0.5 + 0.5 * cos(pi * step / 40))


def train(settings: Settings, out: Path) -> None:
    fault, rank = settings.fault, dist.get_rank() if settings.ranks > 1 else 0
    model = model_of(settings)
    if fault == "frozen":
        layers_of(model)[1].requires_grad_(False)
    model = wrapped(model, settings)
    optimizer = optimizer_of(model, settings)
    base = [group["lr"] for group in optimizer.param_groups]
    with NormTracker(model, optimizer, every=settings.every, include="all", out=out, warn=False):
        for step in range(1, settings.steps + 1):
            torch.manual_seed(1000 * settings.seed + step)
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * rate_at(step, settings)
            if not (fault == "gradients kept" and step == LATE):
                optimizer.zero_grad()
            take_gradients(model, step, rank, settings)
            if fault == "one layer" and step >= LATE:
                for name, p in model.named_parameters():
                    if ".2." in name:
                        p.grad.mul_(0.5)
            if settings.clip:
                nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            if fault == "weights overwritten" and step == LATE:
                with torch.no_grad():
                    next(p for name, p in model.named_parameters() if ".2." in name and p.dim() > 1).mul_(
                        0.99
                    )


def take_gradients(model: nn.Module, step: int, rank: int, settings: Settings) -> None:
    tokens, labels = batch_of(step, settings)
    if settings.wrapper:
        tokens, labels = tokens[rank :: settings.ranks], labels[rank :: settings.ranks]
        share = settings.ranks  # the wrapper divides by it
    else:
        share = 1
    everything = int((batch_of(step, settings)[1][:, 1:] != PADDING).sum())
    own = int((labels[:, 1:] != PADDING).sum())
    count = own if settings.fault == "mean of means" else everything / share
    parts = list(zip(tokens.chunk(settings.accumulate), labels.chunk(settings.accumulate), strict=True))
    if settings.fault == "part lost" and step >= LATE:
        parts = parts[:-1]
    for i, (some, their) in enumerate(parts):
        unsynced = settings.wrapper == "ddp" and i < len(parts) - 1
        with (
            model.no_sync() if unsynced else nullcontext(),
            torch.autocast("cpu", torch.bfloat16) if settings.autocast else nullcontext(),
        ):
            loss_of(model, some, their, count, settings).backward()
