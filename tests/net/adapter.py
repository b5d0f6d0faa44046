"""Every call that the net makes into normgrowth: one small function for each verb, plain values out.

A renamed function, module, column or field is followed here and nowhere else. The keys that leave this file are the
net's own and never change, nor do the numbers in numbers.json.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import normgrowth as ng

Plain = float | int | str | bool | None
Rows = dict[tuple[str, str, int, str, str], float]  # level, name, step, quantity, reference
Numbers = dict[str, Plain]


OF_WEIGHTS = ("norm", "rms", "largest", "numel", "nonfinite")


def _rows(records: ng.Records, *, referenced: bool = False) -> Rows:
    """The table of a result. referenced: quantities are compared with the checkpoint before, or with the one named."""
    found: Rows = {}
    for row in records.table.to_pylist():
        if row["level"] in ("part", "layer_matrices"):  # younger than the net; test_trace.py has its numbers
            continue
        quantity, reference = row["quantity"], row["reference"] if row["reference"] != "previous" else None
        if reference and not referenced:
            quantity, reference = f"{quantity}_{reference}", None
        if row.get("scale") is not None:
            quantity = re.sub(
                r"^saturation|^attended(_share|_spread|_window)?", rf"\g<0>_c{row['scale']:g}", quantity
            )
        found[row["level"], row["name"], row["step"], quantity, reference or ""] = row["value"]
        if referenced and "tokens" in row and row["level"] == "model":
            found["model", "model", row["step"], "tokens", ""] = row["tokens"]
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Findings about a series are warnings too; the net reads them where they are returned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ng.SeriesWarning)
        yield


# --- checkpoints -----------------------------------------------------------------------------------


def parameters(source: Path) -> dict[str, dict[str, Plain]]:
    """How each tensor of the first checkpoint is read."""
    found = ng.parameters(source)
    return {p.name: {"layer": p.layer_name or None, "role": p.role, "counted": p.counted} for p in found}


def trace(
    source: Path, out: Path | None = None, *, lags: Sequence[int] = (), tokens_per_step: float | None = None,
    interrupt_after: int | None = None,
) -> Rows:  # fmt: skip
    """interrupt_after: reports of progress after which KeyboardInterrupt is raised."""
    reports = 0

    def progress(*_: object) -> None:
        nonlocal reports
        reports += 1
        if interrupt_after is not None and reports > interrupt_after:
            raise KeyboardInterrupt

    with _quiet():
        found = ng.trace(
            source, out, lags=lags, tokens_per_step=tokens_per_step, run="net", workers=1, progress=progress
        ).records
    return _rows(found, referenced=True)


def read_trace(folder: Path) -> Rows:
    return _rows(ng.Records.read(folder), referenced=True)


def sums(source: Path, step: int, before: int) -> dict[str, dict[str, float]]:
    """Sums of every tensor of a checkpoint, and against an earlier one."""
    from normgrowth.trace.by_step import measure_checkpoint

    entries = {entry.step: entry for entry in ng.open_source(source).entries}
    with closing(entries[step].open()) as own, closing(entries[before].open()) as other:
        names = list(own.tensors)
        found = measure_checkpoint(own, [("other", other)], names, workers=1)
    pair = found.against["other"]
    columns = {
        "Σb²": found.square,
        "max|b|": found.largest,
        "Σr²": pair.square,
        "Σr·δ": pair.dot,
        "Σδ²": pair.delta,
    }
    return {
        name: {column: float(values[i]) for column, values in columns.items()} for i, name in enumerate(names)
    }


def lint(source: Path) -> list[str]:
    """Findings as "step kind severity tensor", in their order."""
    with _quiet():
        found = ng.lint(source)
    return [_finding(asdict(finding)) for finding in found]


def lint_of_trace(source: Path) -> list[str]:
    """The same, as a trace of all parameters returns them."""
    with _quiet():
        found = ng.trace(source, include="all").findings
    return [_finding(asdict(finding)) for finding in found or ()]


def _finding(f: Mapping[str, Any]) -> str:
    return f"{f['step']} {f['kind']} {f['severity']} {f['name'] or 'whole'}"


def compare(one: Path, other: Path) -> list[dict[str, Plain]]:
    """Two series side by side: rows of the model and its layers."""
    with _quiet():
        found = ng.compare(*(ng.trace(source, run=source.name) for source in (one, other)))
    return [
        {"name": row.name, "norm_ratio": row.norm_ratio, "factor_ratio": row.factor_ratio}
        | {f"{key}_a": value for key, value in asdict(row.a).items()}
        | {f"{key}_b": value for key, value in asdict(row.b).items()}
        for row in found.rows
    ]


# --- laws and dynamics -----------------------------------------------------------------------------


def fit(steps: Sequence[float], norms: Sequence[float], *, replicates: int) -> Numbers:
    """Everything about every law, keys "law quantity"."""
    return _fits(ng.fit(steps, norms, bootstrap=replicates).only)


def fit_trace(source: Path, level: str) -> dict[str, Numbers]:
    """Fits of each series of a trace, without intervals."""
    with _quiet():
        found = ng.fit(ng.trace(source), level=level, bootstrap=0)
    return {name: _fits(fits) for name, fits in found.series.items()}


def _fits(fits: Any) -> Numbers:
    found: Numbers = {
        "points": fits.points,
        "needed": fits.points_needed,
        "effective": fits.weighed_points,
        "rho": fits.autocorrelation,
        "best": fits.best.law,
    }
    for name, law in fits.items():
        found[f"{name} ahead"] = law.held_out_error
        for quantity in ("r2", "rmse", "aicc", "aicc_effective", "weight"):
            found[f"{name} {quantity}"] = getattr(law, quantity)
        for param, value in law.params.items():
            low, high = law.interval(param)
            found |= {f"{name} {param}": value, f"{name} {param} low": low, f"{name} {param} high": high}
    return found


def dynamics(source: Path, schedule: str, *, lags: Sequence[int], weight_decay: float) -> Numbers:
    """What a trace and a schedule say: κ, predictions, budget, direction, uniformity."""
    with _quiet():
        result = ng.dynamics(ng.trace(source, lags=lags), schedule, weight_decay=weight_decay)
    found: Numbers = {"alignment": result.alignment, "fits": result.verdict}
    for fit in (result.aligned, result.misaligned):
        assert fit is not None
        found[f"κ {fit.model} value"] = fit.kappa
        found |= {f"κ {fit.model} {key}": getattr(fit, f"kappa_{key}") for key in ("low", "high", "drift")}
        found[f"κ by growth {fit.model}"] = fit.growth_kappa
        found[f"predicted norm {fit.model}"] = fit.predicted[-1]
        found[f"error {fit.model}"] = fit.error
    for field in ("growth", "by_alignment", "by_steps", "by_decay", "displacement"):
        found[field] = getattr(result.budget, field)
    turns, parts = result.direction, result.uniformity["layer"]
    found |= {"q": turns.q, "q low": turns.low, "q high": turns.high, "direction": turns.verdict}
    found |= {
        "angles summed": float(turns.total[-1]),
        "cosine to half the step": float(turns.doubled.cosine[-1]),
    }
    return found | {"spread of factors": parts.spread, "shares moved": parts.moved}


def predict_norm(schedule: str, kappa: float, step: int, **options: Any) -> float:
    from normgrowth.schedules import parse

    return float(ng.predict_norm(parse(schedule), kappa, [step], **options)[0])


def equilibrium(optimizer: Any, **setting: Any) -> Numbers:
    from normgrowth.dynamics.equilibrium import stationary_decay

    found = ng.equilibrium(optimizer, **setting)
    without = {name: value for name, value in setting.items() if name != "weight_decay"}
    edge = stationary_decay(3.0, optimizer, **without)
    return {"norm": found.norm, "rotation": found.rotation, "time": found.time, "decay that holds 3": edge}


# --- networks --------------------------------------------------------------------------------------


def saturated(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """The last hidden state in the limit."""
    return ng.saturated(model)(**inputs).last_hidden_state


def degrees(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Degrees as text, such as "3" or "1/2"; "zero" for what is exactly 0."""

    def plain(degree: object) -> str:
        return "zero" if degree is None else str(degree)

    found = ng.degrees(model, inputs)
    return {
        "outputs": {name: plain(degree) for name, degree in found.outputs.items()},
        "modules": {row.module: plain(row.degree) for row in found.modules},
        "sums": [f"{met.module}: {met.kept} over {met.dropped}" for met in found.dropped_terms],
        "vanished": dict(found.vanished),
        "orders": found.orders,
        "doubtful": found.undecided_values,
    }


def saturation(model: nn.Module, batches: Sequence[Any], *, baselines: int, scale: float) -> Rows:
    return _rows(ng.saturation(model, inputs=batches, random_init=baselines, c=(scale,)).records)


def saturation_of_series(source: Path, model: nn.Module, batches: Sequence[Any]) -> Rows:
    """The trace of a series of checkpoints of the model, and the saturation of each."""
    with _quiet():
        return _rows(ng.saturation(source, inputs=batches, config=model, c=()).records, referenced=True)


def heads(
    model: nn.Module, batches: Sequence[Any], *, scales: Sequence[float]
) -> tuple[Rows, dict[str, str]]:
    """Rows, and the kind of each head: as it is, and in the saturated network."""
    found = ng.heads(model, inputs=batches, c=scales)
    (known,) = found.models.values()
    own, limit = known.kinds, known.saturated_kinds
    return _rows(found.records), {head: f"{own[head]}, saturated {limit[head]}" for head in own}


def scaling(model: nn.Module, inputs: Mapping[str, Tensor], scales: Sequence[float]) -> tuple[Rows, Numbers]:
    """Rows whose step is the index of the scale, and what is known of the whole curve."""
    found = ng.scaling(model, inputs, c=scales)
    (network,) = found.networks
    rows = {}
    for row in found.records.table.to_pylist():
        key = (row["level"], row["name"], list(scales).index(row["scale"]), row["quantity"], None)
        rows[key] = row["value"]
    rows |= {("model", "model", i, "scale", None): c for i, c in enumerate(scales)}
    rate = {"law": network.rate.law, "power": network.rate.power}
    return rows, {"degree": network.degree, "norm": network.norm, **rate}


def scaled_output(model: nn.Module, inputs: Mapping[str, Tensor], c: float) -> Tensor:
    """The last hidden state with all parameters times c."""
    with torch.no_grad(), ng.scaled_weights(model, c):
        return model(**inputs).last_hidden_state


# --- training --------------------------------------------------------------------------------------


@contextmanager
def tracked(model: nn.Module, optimizer: torch.optim.Optimizer, found: Rows) -> Iterator[None]:
    """Track every step in this context; `found` then has the rows."""
    with ng.NormTracker(model, optimizer, every=1, compare_first=True, logits=True, run="net") as tracker:
        yield
    rows = _rows(tracker.trace.records, referenced=True)
    found |= {row: value for row, value in rows.items() if row[2] > 0}  # step 0 has norms only


def _settings(corpus: Path, options: Mapping[str, Any]) -> Any:
    from normgrowth.lab.settings import TrainSettings

    return TrainSettings(corpus=str(corpus), **options)


def train(corpus: Path, out: Path, **options: Any) -> Rows:
    from normgrowth.train import train

    rows = _rows(train(_settings(corpus, options), out).records)
    # Norms at step 0 are those before the first step.
    return {row: value for row, value in rows.items() if row[2] or row[3] not in OF_WEIGHTS}


def sweep(
    corpus: Path, out: Path, rates: Sequence[float], decays: Sequence[float], *, refine: bool, stack: int,
    **options: Any,
) -> Rows:  # fmt: skip
    """stack: cells that train together."""
    from normgrowth.engine import Threads
    from normgrowth.lab.cells.axis import Axis

    x, y = Axis("lr", tuple(rates)), Axis("weight_decay", tuple(decays))
    with closing(Threads(1)) as engine:
        found = ng.sweep(
            _settings(corpus, options), out, x=x, y=y, refine=refine, engine=engine, stack_size=stack
        )
    return _rows(found.records)


# --- the paper -------------------------------------------------------------------------------------


def claims() -> dict[str, tuple[str, Numbers]]:
    """Verdict and numbers of every claim that the published numbers alone decide."""
    from normgrowth.paper.claim import judge
    from normgrowth.paper.claims import CLAIMS
    from normgrowth.paper.evidence import Evidence

    found = [judge(claim, Evidence()) for claim in CLAIMS.values() if not claim.needs]
    return {one.id: (one.verdict, dict(one.measured)) for one in found}


def errata() -> dict[str, tuple[bool | None, Numbers]]:
    """Whether what is printed fails, and the numbers that say so, where no training run is needed."""
    from normgrowth.paper.claim import check
    from normgrowth.paper.discrepancies.caveats import CAVEATS
    from normgrowth.paper.discrepancies.departures import DEPARTURES
    from normgrowth.paper.discrepancies.errata import ERRATA
    from normgrowth.paper.evidence import Evidence

    known = (*ERRATA.values(), *DEPARTURES.values(), *CAVEATS.values())
    found = [check(one, Evidence()) for one in known if not one.needs]
    return {one.id: (one.differs, dict(one.measured)) for one in found}
