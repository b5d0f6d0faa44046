"""Pairs of runs of small GPT-2, Llama and T5 models: honest ones, and ones with a planted fault."""

from dataclasses import replace

from compare.pairs import Fault
from compare.transformers_training import LATE, Settings

ONE = Settings()
DDP, FSDP = replace(ONE, ranks=2, wrapper="ddp"), replace(ONE, ranks=2, wrapper="fsdp")
GPT = {"model": "gpt2", "seed": 13, "lr": 3e-4}
SGD = {"optimizer": "sgd", "lr": 0.05, "seed": 5}
MUON = {"optimizer": "muon", "lr": 2e-2, "seed": 3}
T5 = {"model": "t5", "seed": 3, "lr": 5e-4}  # ReLUs change gradients by 2e-4 at step 2 or 4

SHORT_HONEST = {
    "GPT-2, DDP and FSDP2": (replace(DDP, **GPT), replace(FSDP, **GPT)),
    "Llama, SGD, 1 and 2 ranks": (replace(ONE, **SGD), replace(FSDP, **SGD)),
    "Llama, Muon, 1 and 2 ranks": (replace(ONE, **MUON), replace(DDP, **MUON)),
}
LONG_HONEST = {
    "Llama, DDP and FSDP2": (DDP, FSDP),
    "Llama, high rate": (replace(DDP, lr=1e-2, seed=11), replace(FSDP, lr=1e-2, seed=11)),
    "GPT-2, high rate": (
        replace(DDP, model="gpt2", lr=1e-2, steps=30),
        replace(FSDP, model="gpt2", lr=1e-2, steps=30),
    ),
    "Llama, 60 steps": (replace(ONE, steps=60), replace(DDP, steps=60)),
    "GPT-2, eager and fused attention": (
        replace(ONE, **GPT),
        replace(ONE, **GPT, attention="eager"),
    ),
    "Llama, eager and fused attention": (ONE, replace(ONE, attention="eager")),
    "GPT-2, accumulation": (replace(ONE, **GPT), replace(DDP, **GPT, accumulate=4)),
    "Llama, accumulation with padding": (
        replace(ONE, padded=True),
        replace(FSDP, padded=True, accumulate=2),
    ),
    "Llama, padding, 1 and 4 ranks": (
        replace(ONE, padded=True, seed=21),
        replace(DDP, ranks=4, padded=True, seed=21),
    ),
    "GPT-2, schedule": (
        replace(DDP, **GPT, schedule=True, steps=20),
        replace(FSDP, **GPT, schedule=True, steps=20),
    ),
    "Llama, bfloat16": (replace(DDP, dtype="bfloat16"), replace(FSDP, dtype="bfloat16")),
    "GPT-2, bfloat16": (
        replace(ONE, **GPT, dtype="bfloat16"),
        replace(DDP, **GPT, dtype="bfloat16"),
    ),
    "Llama, bfloat16 and SGD": (
        replace(ONE, **SGD, dtype="bfloat16"),
        replace(FSDP, **SGD, dtype="bfloat16"),
    ),
    "GPT-2, autocast": (replace(ONE, **GPT, autocast=True), replace(DDP, **GPT, autocast=True)),
    "GPT-2, autocast and accumulation": (
        replace(ONE, **GPT, autocast=True, steps=40),
        replace(ONE, **GPT, autocast=True, steps=40, accumulate=4),
    ),
    "Llama, autocast": (replace(DDP, autocast=True), replace(FSDP, autocast=True, accumulate=2)),
    "Llama, autocast, 40 steps": (
        replace(ONE, autocast=True, steps=40),
        replace(ONE, autocast=True, steps=40, optimizer="adamw fused"),
    ),
    "Llama, autocast and Muon": (
        replace(ONE, **MUON, autocast=True),
        replace(DDP, **MUON, autocast=True),
    ),
    "Llama, checkpointing": (ONE, replace(FSDP, checkpointing=True)),
    "Llama, RMSprop": (
        replace(ONE, optimizer="rmsprop for-loop", lr=1e-3),
        replace(FSDP, optimizer="rmsprop foreach", lr=1e-3),
    ),
    "GPT-2, Adam": (
        replace(ONE, **GPT, optimizer="adam"),
        replace(FSDP, **GPT, optimizer="adam foreach"),
    ),
    "Llama, Adafactor": (
        replace(ONE, optimizer="adafactor", lr=1e-2),
        replace(DDP, optimizer="adafactor", lr=1e-2),
    ),
    "GPT-2, fused AdamW": (
        replace(ONE, **GPT, optimizer="adamw fused"),
        replace(FSDP, **GPT, optimizer="adamw fused"),
    ),
    "GPT-2, dropout": (
        replace(ONE, **GPT, dropout=0.2),
        replace(ONE, **GPT, dropout=0.2, optimizer="adamw foreach"),
    ),
    "Llama, clipping": (replace(DDP, clip=0.5), replace(FSDP, clip=0.5)),
    "Llama, every fifth step": (
        replace(DDP, steps=40, every=5),
        replace(FSDP, steps=40, every=5),
    ),
    "GPT-2, SGD at a high rate": (
        replace(DDP, model="gpt2", optimizer="sgd", lr=0.5, momentum=0.95),
        replace(FSDP, model="gpt2", optimizer="sgd", lr=0.5, momentum=0.95),
    ),
    "Llama, Muon, 4 ranks": (replace(DDP, **MUON), replace(DDP, **MUON, ranks=4)),
    "T5, DDP and FSDP2": (replace(DDP, **T5), replace(FSDP, **T5)),
    "T5, 1 and 2 ranks": (replace(ONE, **T5), replace(FSDP, **T5)),
    "T5, every fourth step": (replace(ONE, **T5, every=4), replace(FSDP, **T5, every=4)),
    "Llama, float64": (replace(DDP, dtype="float64"), replace(FSDP, dtype="float64")),
}


def fault(a: Settings, b: Settings, name: str, cause: str, step: int = 1, **more: object) -> Fault:
    return Fault(a, replace(b, fault=name), cause, step, **more)


SHORT_FAULTS = {
    "a layer is frozen": fault(DDP, FSDP, "frozen", "still"),
    "gradients of one layer are halved": fault(DDP, FSDP, "one layer", "part", LATE),
    "weights are overwritten": fault(
        replace(DDP, **GPT), replace(FSDP, **GPT), "weights overwritten", "outside", LATE + 1
    ),
    "steps of Muon": fault(replace(ONE, **MUON), replace(DDP, **MUON), "steps of Muon", "optimizer"),
}
LONG_FAULTS = {
    "epsilon of Adam": fault(DDP, FSDP, "epsilon of Adam", "optimizer"),
    "decay of the norms": fault(replace(DDP, **GPT), replace(FSDP, **GPT), "decayed norms", "decay"),
    "rate of a layer": fault(DDP, FSDP, "rate of a layer", "learning_rate", factor=3.0),
    "schedule is a step early": fault(
        replace(DDP, schedule=True), replace(FSDP, schedule=True), "schedule", "learning_rate", factor=2.0
    ),
    "mean of means": fault(replace(DDP, padded=True), replace(FSDP, padded=True), "mean of means", "data"),
    "momentum": Fault(replace(ONE, **SGD), replace(DDP, **SGD, momentum=0.95), "optimizer", 2),
    "nesterov": fault(replace(ONE, **SGD), replace(DDP, **SGD), "nesterov", "optimizer"),
    "labels shifted twice": fault(replace(ONE, **GPT), replace(DDP, **GPT), "labels shifted twice", "data"),
    "rope": fault(DDP, FSDP, "rope", "data"),
    "epsilon of the norms": fault(replace(DDP, **GPT), replace(FSDP, **GPT), "epsilon of the norms", "data"),
    "gradients are kept, T5": fault(replace(ONE, **T5), replace(FSDP, **T5), "gradients kept", "data", LATE),
    "gradients are kept": fault(DDP, FSDP, "gradients kept", "data", LATE),
    "a part of the accumulation is lost": fault(
        replace(DDP, accumulate=4), replace(FSDP, accumulate=4), "part lost", "data", LATE
    ),
    "autocast in one run": Fault(DDP, replace(FSDP, autocast=True), "precision"),
    "threshold of clipping": Fault(replace(DDP, clip=0.1), replace(FSDP, clip=0.2), "clipping", factor=2.0),
    "Adam for AdamW": Fault(replace(ONE, **GPT), replace(DDP, **GPT, optimizer="adam"), "decay_kind"),
}
