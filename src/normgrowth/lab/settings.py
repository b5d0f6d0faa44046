"""The settings of a training run: everything its weights depend on."""

from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, get_args

from normgrowth.checkpoints.parameters.blocks import DEFAULT_INCLUDE
from normgrowth.errors import InputError
from normgrowth.schedules import SHAPES, Schedule
from normgrowth.serialization.checksums import JsonObject
from normgrowth.text import one_line
from normgrowth.tracking.due import due

if TYPE_CHECKING:
    from normgrowth.network.models.encoders import EncoderConfig

Kind = Literal["paper_pre_norm", "usual_pre_norm", "post_norm"]
Optimizers = Literal["adamw", "adam", "sgd", "adafactor"]
DECAY = {"adamw": 0.01, "adam": 0.0, "sgd": 0.0, "adafactor": 0.0}  # PyTorch's defaults


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of a run.

    The defaults are those of the paper (§A): PyTorch's AdamW, no dropout, batches of 16 sentences, 5 epochs.
    """

    __repr__ = one_line

    corpus: str
    kind: Kind = "paper_pre_norm"
    layers: int = 12
    width: int = 768
    heads: int = 12
    feedforward: int = 512
    bias: bool = True
    final_norm: bool = False
    tied: bool = False
    leaking: bool = False  # the mask of the authors' code, for comparison only
    positions: int | None = None  # None: as many as the longest sentence needs
    min_count: int | None = None
    longest: int = 50  # longest word of a formal language, in symbols
    optimizer: Optimizers = "adamw"
    lr: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    hold: int = 0  # for inverse_sqrt: the step up to which the rate is constant, as in the schedule of T5
    end: float = 0.0
    weight_decay: float | None = None  # None: PyTorch's default for the optimizer
    momentum: float = 0.0  # for SGD
    clip: float | None = None  # largest gradient norm
    batch: int = 16  # sentences per step
    epochs: int = 5
    steps: int | None = None  # stop after this many steps, if the epochs have more
    seed: int = 0
    # After each epoch; "powers": also after steps 1, 2, 4, ...; "500": also every 500 steps.
    evaluate: str = "epochs"
    include: str = DEFAULT_INCLUDE  # the parameters that the tracker counts, as in `trace`
    track: str = "10"  # when the tracker measures: every n-th step, or "powers"
    dev_sentences: int | None = None  # number of development sentences; None: all
    saturation_sentences: int = 100  # development sentences for saturation; 0: do not measure it

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizers):
            raise InputError(
                f"unknown optimizer {self.optimizer!r}; known: {', '.join(get_args(Optimizers))}"
            )
        if self.schedule not in SHAPES:
            raise InputError(f"unknown schedule {self.schedule!r}; known: {', '.join(SHAPES)}")
        for name in ("lr", "momentum", "weight_decay", "end"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise InputError(f"{name} must be >= 0, got {value}")
        for name in ("batch", "epochs", "steps", "positions", "min_count", "dev_sentences", "longest"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} must be >= 1, got {value}")
        for name in ("seed", "warmup", "hold", "saturation_sentences"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.seed >= 2**63:
            raise InputError(f"seed must be < 2^63, got {self.seed}")
        if self.clip is not None and not (isfinite(self.clip) and self.clip > 0):
            raise InputError(f"clip must be finite and > 0, got {self.clip}")
        if self.hold and self.schedule != "inverse_sqrt":
            raise InputError(f"hold applies only to the schedule inverse_sqrt, not to {self.schedule}")
        if self.end and self.schedule not in ("linear", "cosine"):
            raise InputError(f"end applies only to the schedules linear and cosine, not to {self.schedule}")
        if self.momentum and self.optimizer != "sgd":
            raise InputError(f"momentum applies only to sgd, not to {self.optimizer}")
        for name, words in (("evaluate", ("epochs", "powers")), ("track", ("powers",))):
            value = getattr(self, name)
            if value not in words and not (value.isdecimal() and int(value) > 0):
                raise InputError(f"{name} must be {' or '.join(words)} or a number of steps, got {value!r}")
        if self.include not in ("blocks", "all"):
            raise InputError(f"include must be blocks or all, got {self.include!r}")
        with suppress(ImportError):  # settings of a saved result must be readable without torch
            self.encoder(vocabulary=1, positions=1)  # raises errors of the shape

    def encoder(self, vocabulary: int, positions: int) -> "EncoderConfig":
        from normgrowth.network.models.encoders import EncoderConfig

        return EncoderConfig(
            vocabulary=vocabulary,
            max_length=positions,
            kind=self.kind,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            feedforward=self.feedforward,
            bias=self.bias,
            final_norm=self.final_norm,
            leaking=self.leaking,
        )

    def request(self) -> JsonObject:
        """Return the settings as entries of a request. `kind` is called network there: a request has its own kind."""
        return {"network" if name == "kind" else name: value for name, value in asdict(self).items()}

    def rate(self, total: int) -> Schedule:
        """Return the learning rate schedule of a run with this many steps."""
        falls = self.schedule in ("linear", "cosine")
        return Schedule(
            self.schedule,
            self.lr,
            total if falls else None,
            self.warmup,
            self.end if falls else 0.0,
            self.hold,
        )

    def evaluates(self, step: int) -> bool:
        """Whether to evaluate after a step within an epoch."""
        return self.evaluate != "epochs" and due(every(self.evaluate))(step)

    @property
    def decay(self) -> float:
        return DECAY[self.optimizer] if self.weight_decay is None else self.weight_decay


def every(text: str) -> int | str:
    """Return the argument `every` of `NormTracker`: a number of steps, or "powers"."""
    return int(text) if text.isdecimal() else text


DEFAULTS = {field.name: field.default for field in fields(TrainSettings) if field.default is not MISSING}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "small": {"layers": 4, "width": 128, "heads": 4, "feedforward": 256, "epochs": 1, "evaluate": "powers"},
    # For sweeps: seconds per run, but it learns more than word frequencies (WikiText-2, AdamW, lr 3e-4 to 1e-1).
    "tiny": {
        "layers": 2,
        "width": 32,
        "heads": 2,
        "feedforward": 64,
        "positions": 32,
        "longest": 30,
        "min_count": 100,
        "steps": 500,
        "dev_sentences": 200,
        "saturation_sentences": 20,
    },
}


def preset(name: str, corpus: str, **changes: Any) -> TrainSettings:
    """Return the settings of a preset: "paper" as in the paper, "small" for an hour, "tiny" for a minute.

    changes: settings that replace those of the preset.

    >>> ng.preset("tiny", "penn", optimizer="sgd").optimizer
    'sgd'
    """
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return replace(TrainSettings(corpus=corpus, **PRESETS[name]), **changes)
