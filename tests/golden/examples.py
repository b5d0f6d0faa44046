"""A few small results of each kind, always with the same numbers: what the golden files show."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from report_records import known_heads, known_trace, replaced, sweep_records
from safetensors.numpy import save_file
from synthetic_series import walk, write_series

import normgrowth as ng
from normgrowth.lab.run import CorpusSummary
from normgrowth.network.measured import ModelInfo, TextInfo
from normgrowth.paper.reproduction import Check, Judgment, Reproduction, StageOutcome, TableRow
from normgrowth.records import Block
from normgrowth.results import Result
from normgrowth.trace.result import Trace

ENDS = {"": 0.0, "_low": -0.05, "_high": 0.05, "_random": -0.3}
RECORDS = Path(__file__).parents[2] / "docs" / "records"


@contextmanager
def _series(*, repeated: bool = False) -> Iterator[Path]:
    """Eight checkpoints of a random walk. repeated: the sixth is a copy of the fifth, for lint to find."""
    with TemporaryDirectory() as folder:
        states = walk(8)
        if repeated:
            states[5] = states[4]
        yield write_series(Path(folder) / "series", states)


def walk_trace(*, scalars: bool = False) -> Trace:
    with _series() as series:
        return replace(ng.trace(series, scalars=scalars), source="series")


def _trace(*, source: str = "somewhere", **options: Any) -> Trace:
    return replace(Trace.from_records(known_trace(**options)), source=source)


def _tracked() -> Trace:
    return replace(_trace(steps=(0, 1, 2)), tracked=True)


def _shrinking() -> Trace:
    return _trace(
        total_growth=[[1], [-9]], total_growth_alignment=[[-2], [-12]], total_growth_steps=[[3], [3]]
    )


def _not_finite() -> Trace:
    return replace(Trace.from_records(replaced(known_trace(), "nonfinite", 1200)), source="somewhere")


def _gains() -> Trace:
    """Matrices that grow by 3 behind gains that stay: ‖θ‖² = 1 + 24 at first, 9 + 24 at last."""
    steps, of_parts = [0, 100, 200], np.array([[1.0, 24**0.5], [2.0, 24**0.5], [3.0, 24**0.5]])
    model = np.sqrt((of_parts**2).sum(axis=1, keepdims=True))
    none, layers = [None], (["layer.0", "layer.1"], [0, 1], [None] * 2)
    of_matrices = of_parts[:, :1] * np.sqrt([[0.2, 0.8], [0.25, 0.75], [0.3, 0.7]])
    of_layers = {"norm": np.sqrt(of_matrices**2 + 12)}
    blocks = [
        Block("layer", *layers, steps, of_layers),
        Block("layer_matrices", *layers, steps, {"norm": of_matrices}),
        Block("part", ["matrices", "vectors"], none * 2, none * 2, steps, {"norm": of_parts}),
        Block("model", ["model"], none, none, steps, {"norm": model}),
    ]
    return replace(Trace.from_records(ng.Records.from_blocks("run", blocks)), source="somewhere")


def _hidden_matrices() -> ng.Dynamics:
    """Dynamics of layers whose gains of 1 outweigh matrices that grow."""
    rng = np.random.default_rng(0)
    shapes = {
        f"layers.{i}.{name}": shape
        for i in (0, 1)
        for name, shape in (("mlp.weight", (20, 30)), ("norm.weight", (60,)))
    }
    now = {
        name: np.ones(shape) if len(shape) == 1 else 0.1 * rng.normal(size=shape)
        for name, shape in shapes.items()
    }
    with TemporaryDirectory() as folder:
        for step in range(0, 100, 10):
            save_file(
                {name: value.astype(np.float32) for name, value in now.items()},
                Path(folder) / f"step_{step}.safetensors",
            )
            now = {
                name: value + (0.05 if value.ndim > 1 else 0.005) * rng.normal(size=value.shape)
                for name, value in now.items()
            }
        return ng.dynamics(replace(ng.trace(folder), source="series"), "0.01")


def _parameters() -> ng.Parameters:
    with _series() as series:
        return replace(ng.parameters(series), source="series", checkpoint="series/step_0.safetensors")


def _findings() -> ng.Findings:
    with _series(repeated=True) as series:
        return replace(ng.lint(series), source="series")


def _degrees() -> ng.Degrees:
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    return ng.degrees(block, torch.ones(1, 3, 8))


def _sqrt_law(points: int) -> ng.Fits:
    steps, noise = np.arange(points) * 100, np.random.default_rng(0).normal(size=points)
    return ng.fit(steps, 3 + np.sqrt(steps) + 0.1 * noise, bootstrap=0)


def _dynamics(**options: object) -> ng.Dynamics:
    steps = np.arange(12) * 10
    rng = np.random.default_rng(0)
    weights = np.cumsum(np.vstack([rng.normal(size=400), 0.3 * rng.normal(size=(11, 400))]), axis=0)
    norm = np.linalg.norm(weights, axis=1)
    moves = np.diff(weights, axis=0)
    size, inner = np.linalg.norm(moves, axis=1), (weights[:-1] * moves).sum(1)
    values = {
        "alignment": inner / size / norm[:-1],
        "step_size": size,
        "cosine": (weights[1:] * weights[:-1]).sum(1) / norm[1:] / norm[:-1],
        "angle": np.arccos((weights[1:] * weights[:-1]).sum(1) / norm[1:] / norm[:-1]),
        "growth": np.diff(norm**2),
        "growth_alignment": 2 * inner,
        "growth_steps": size**2,
        "total_growth": norm[1:] ** 2 - norm[0] ** 2,
        "total_growth_alignment": np.cumsum(2 * inner),
        "total_growth_steps": np.cumsum(size**2),
    }
    model = "model", ["model"], [None], [None]
    blocks = [
        Block(*model, steps.tolist(), {"norm": norm[:, None], "numel": np.full((12, 1), 400.0)}),
        Block(*model, steps[1:].tolist(), {name: value[:, None] for name, value in values.items()}),
    ]
    trace = replace(Trace.from_records(ng.Records.from_blocks("walk", blocks)), source="walk")
    return ng.dynamics(trace, **options)  # pyright: ignore[reportArgumentType]


def _run() -> ng.Run:
    """The norms of a trace, with scores as evaluations add them."""
    norms = _trace().records
    scores = {
        "dev_loss": [3.0, 2.5, 2.0],
        "perplexity": [20.1, 12.2, 7.39],
        "saturation": [0.25, 0.5, 0.75],
        "saturation_others": [0.1, 0.2, 0.3],
    }
    values = {name: np.array(column)[:, None] for name, column in scores.items()}
    steps = norms.distinct("step")
    evaluated = Block("model", ["model"], [None], [None], steps, values)
    tested = Block("model", ["model"], [None], [None], steps[-1:], {"test_perplexity": np.array([[7.5]])})
    records = ng.Records.joined([norms, ng.Records.from_blocks("run", [evaluated, tested])])
    corpus = CorpusSummary("penn", frequency_loss=6.5)
    return ng.Run(records=records, settings=ng.TrainSettings(corpus="penn"), corpus=corpus, best_step=200)


def _reproduction() -> Reproduction:
    def claim(name: str, verdict: str, **fields: object) -> Judgment:
        facts = {"where": "§3", "statement": f"statement of {name}", "published": "1.5", "rule": "factor > 1"}
        return Judgment(id=name, verdict=verdict, reason="the factor is 1.25", **facts, **fields)  # pyright: ignore[reportArgumentType]

    check = Check(id="lemma-1", where="§A", stated="for all f", correct="for f > 0", measured={"f": 0.5})
    return Reproduction.of(
        claims=(
            claim("norm-grows", "holds", measured={"factor": 1.25, "other": None}),
            claim("norm-sqrt", "holds in part"),
            claim("step-size", "not measured here"),
        ),
        errata=(replace(check, differs=True), replace(check, id="lemma-2", measured={}, reason="not run")),
        departures=(replace(check, id="mask", differs=False),),
        stages=(StageOutcome("theory", seconds=2.0), StageOutcome("lab", status="failed", reason="no disk")),
        table1=(TableRow("Linear", 1.0, 1.0, 1.0), TableRow("Softmax", None, 0.0, None)),
    )


def _compared() -> ng.Comparison:
    return ng.compare(_trace(), _trace(steps=(0, 100), scale=2.0, source="elsewhere"))


def _behavior() -> ng.Behavior:
    """A model that loses accuracy as its weights grow, and overflows at the last c."""

    def block(
        name: str, accuracy: float, agreement: float, loss: float | None, c: float | None = None
    ) -> Block:
        means = {"accuracy": accuracy, "agreement": agreement, "legal_share": 0.5 + accuracy / 2}
        means |= {} if loss is None else {"loss": loss}
        values = {
            f"{key}{end}": value + add if key == "loss" else min(value + add, 1.0)
            for key, value in means.items()
            for end, add in ENDS.items()
        }
        arrays = {key: np.array([[value]]) for key, value in values.items()}
        return Block(
            "model", [name], [None], [None], [0], arrays, constants={} if c is None else {"scale": c}
        )

    blocks = [block("soft", 0.6, 1.0, 1.25), block("hard_attention", 0.5, 0.75, 2.5)]
    blocks += [block("scaled", 0.5, 0.625, 4.0, 10.0), block("scaled", math.nan, math.nan, math.nan, 1e30)]
    blocks.append(block("saturated", 0.4, 0.5, None))
    margins = {
        "margin": 2.0,
        "margin_least": -4.0,
        "normalized_margin": 0.02,
        "normalized_margin_least": -0.04,
    }
    arrays = {name: np.array([[value]]) for name, value in {**margins, "logit_degree": 2.0}.items()}
    blocks.append(Block("model", ["soft"], [None], [None], [0], arrays))
    text = TextInfo("words.txt, through the model's tokenizer", True, 0.0, 20, 160)
    return ng.Behavior(
        records=ng.Records.from_blocks("dyck", blocks),
        source="dyck",
        models={"dyck": ModelInfo("dyck", "StoredLanguageModel", "float32", text=text)},
        objective={"dyck": "causal"},
        c=(10.0, 1e30),
        language="dyck1",
        random_init=1,
        notes=("scaled at c = 1e+30: logits overflow, so its quantities are NaN there",),
    )


EXAMPLES: dict[str, dict[str, Callable[[], Result]]] = {
    "parameters": {"of a series": _parameters},
    "trace": {
        "of a series": walk_trace,
        "with known numbers": _trace,
        "of a tracker": _tracked,
        "of one checkpoint": lambda: _trace(steps=(7,)),
        "that shrinks": _shrinking,
        "with values that are not finite": _not_finite,
        "of a model with large gains": _gains,
        "of single weights": lambda: walk_trace(scalars=True),
    },
    "findings": {"of a series with a copy": _findings},
    "comparison": {"of two traces": _compared},
    "fits": {
        "of a model": lambda: ng.fit("published:t5_norm", bootstrap=50),
        "of layers": lambda: ng.fit(walk_trace(), level="layer", bootstrap=0),
        "of the paper's law": lambda: _sqrt_law(20),
        "of too few points": lambda: _sqrt_law(3),
    },
    "dynamics": {
        "without a schedule": _dynamics,
        "with a schedule": lambda: _dynamics(schedule="0.01"),
        "with weight decay": lambda: _dynamics(schedule="0.01", weight_decay=0.1, optimizer="adamw"),
        "of matrices that gains hide": _hidden_matrices,
        "of rounded numbers": lambda: ng.dynamics("published:t5-encoder"),
    },
    "degrees": {"of an encoder layer": _degrees},
    "saturation": {
        "of models": lambda: ng.load(RECORDS / "minilm"),
        "of a series": lambda: ng.load(RECORDS / "training"),
    },
    "heads": {
        "with the saturated network": lambda: known_heads(shown=True),
        "of the network itself": lambda: known_heads(exact=False),
    },
    "scaling": {"of the paper's encoders": lambda: ng.load(RECORDS / "figure4")},
    "behavior": {"of a formal language": _behavior},
    "run": {"of a language model": _run},
    "sweep": {
        "with an edge": lambda: ng.Sweep.from_stored(sweep_records()),
        "with cells that failed": lambda: ng.Sweep.from_stored(
            sweep_records(diverged=((2, 0),), missing=((0, 3),), lost=[[0, 3]], edge=(math.inf,) * 3)
        ),
    },
    "reproduction": {
        "of three claims": _reproduction,
        "of a stage without claims": lambda: Reproduction.of(stages=(StageOutcome("theory"),)),
    },
}
