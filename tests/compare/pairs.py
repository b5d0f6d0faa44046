"""Pairs of runs: honest ones, which differ by rounding alone, and ones with a planted fault."""

from dataclasses import dataclass, replace

from compare.training import CHANGED, Settings

ONE, DDP, FSDP = Settings(), Settings(2, "ddp"), Settings(2, "fsdp")
MIXED = {"precision": "autocast"}
SGD = {"optimizer": "sgd", "lr": 0.1}

# name -> the two runs. The first ones are run by `make test`, all by `make test-all`.
SHORT_HONEST = {
    "DDP and FSDP2": (DDP, FSDP),
    "1 and 2 ranks": (ONE, DDP),
    "fused optimizer": (ONE, replace(ONE, implementation="fused")),
    "autocast, 1 and 2 ranks": (replace(ONE, **MIXED), replace(DDP, **MIXED)),
    "autocast and a policy of FSDP2": (replace(DDP, **MIXED), replace(FSDP, precision="policy")),
    "clipping under FSDP2": (replace(DDP, clip=True), replace(FSDP, clip=True)),
}
LONG_HONEST = {
    "foreach optimizer": (ONE, replace(ONE, implementation="foreach")),
    "fused attention": (replace(ONE, attention="fused"), replace(FSDP, attention="fused")),
    "accumulation": (ONE, replace(DDP, accumulate=4)),
    "SGD": (replace(ONE, **SGD), replace(FSDP, **SGD)),
    "dropout": (replace(ONE, dropout=0.1), replace(ONE, dropout=0.1, implementation="fused")),
    "activation checkpointing": (ONE, replace(FSDP, checkpointing=True)),
    "float64": (replace(ONE, dtype="float64"), replace(FSDP, dtype="float64")),
    "bfloat16": (replace(ONE, dtype="bfloat16"), replace(FSDP, dtype="bfloat16")),
    "autocast, accumulation": (replace(ONE, **MIXED), replace(ONE, **MIXED, accumulate=4)),
    "autocast, fused optimizer": (replace(ONE, **MIXED), replace(ONE, **MIXED, implementation="fused")),
    "autocast, SGD": (replace(ONE, **MIXED, **SGD), replace(FSDP, precision="policy", **SGD)),
    "autocast, clipping": (replace(DDP, **MIXED, clip=True), replace(FSDP, precision="policy", clip=True)),
    "every third step": (replace(ONE, every=3), replace(FSDP, every=3)),
    "1 and 4 ranks": (ONE, Settings(4, "ddp")),
    "FSDP2 on 2 and 4 ranks": (FSDP, Settings(4, "fsdp")),
    "tensor parallelism": (ONE, Settings(2, "tp")),
    "hybrid sharding": (DDP, Settings(4, "hsdp")),
    "eager and compiled": (ONE, replace(ONE, compiled=True)),
}


@dataclass(frozen=True)
class Fault:
    """Two runs and what must be said about them. tensor: the one that differs most, where the fault decides it."""

    a: Settings
    b: Settings
    cause: str
    step: int = 1
    tensor: str = ""
    factor: float | None = None


UP = "layers.1.up.weight"
SHORT_FAULTS = {
    "no averaging over ranks": Fault(DDP, Settings(2), "averaging"),
    "accumulation without division": Fault(
        replace(DDP, accumulate=4),
        replace(FSDP, accumulate=4, fault="accumulation"),
        "gradient_factor",
        factor=4.0,
    ),
    "parameter missing in the optimizer": Fault(DDP, replace(FSDP, fault="missing"), "still", 1, UP),
    "decay on the wrong group": Fault(DDP, replace(FSDP, fault="decay"), "decay"),
    "clipping by the local norm": Fault(
        replace(DDP, clip=True), replace(FSDP, clip=True, fault="local_clip"), "local_clipping", factor=2**0.5
    ),
    "gradient of a part, clipped": Fault(
        replace(DDP, clip=True),
        replace(FSDP, clip=True, fault="embedding is doubled"),
        "part",
        tensor="embedding.weight",
    ),
    "another data order on one rank": Fault(DDP, replace(FSDP, fault="data"), "data", CHANGED),
}
LONG_FAULTS = {
    "tied weights untied": Fault(DDP, replace(DDP, fault="untied"), "untied", 1, "embedding.weight"),
    "bfloat16 master weights": Fault(
        replace(DDP, lr=1e-4), replace(FSDP, lr=1e-4, dtype="bfloat16"), "rounding"
    ),
    "gradients of a layer, clipped": Fault(
        replace(DDP, clip=True), replace(FSDP, clip=True, fault="layer is doubled"), "part"
    ),
    "a head of its own": Fault(DDP, replace(FSDP, fault="own head"), "untied", 1, "embedding.weight"),
    "autocast in one run": Fault(DDP, replace(FSDP, **MIXED), "precision"),
    "a layer is initialized larger": Fault(
        DDP, replace(FSDP, fault="layer is larger"), "initialization", 0, factor=1.001
    ),
    "epsilon": Fault(DDP, replace(FSDP, eps=1e-4), "optimizer"),
    "dropout seeds": Fault(replace(DDP, dropout=0.1), replace(DDP, dropout=0.1, fault="dropout"), "data"),
    "sum over ranks": Fault(DDP, replace(FSDP, fault="sum"), "gradient_factor", factor=2.0),
    "no decay": Fault(DDP, replace(FSDP, decay=0.0), "decay"),
    "initialization": Fault(DDP, replace(FSDP, seed=1), "initialization", 0),
    "learning rate": Fault(DDP, replace(FSDP, lr=5e-4), "learning_rate", factor=0.5),
    "betas": Fault(DDP, replace(FSDP, betas=(0.9, 0.95)), "optimizer", 2),
    "no clipping": Fault(replace(DDP, clip=True), FSDP, "clipping"),
    "SGD without averaging": Fault(replace(DDP, **SGD), Settings(2, **SGD), "averaging"),
}
