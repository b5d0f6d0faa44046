"""Trace: a series of checkpoints becomes records.

    open the series -> read the names -> for each step: moments (stored at once) -> records

The moments of a step depend on nothing but the checkpoints they compare, so each is kept in a file
with a key that names them. Started again after a Ctrl-C or a kill, or on a series that got longer,
the trace computes what is missing and ends with the same records to the bit.
"""

import platform
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from normgrowth.engine import Engine, no_collection
from normgrowth.errors import InputError, SeriesWarning
from normgrowth.records import Block, Records
from normgrowth.weights.lint.alongside import told
from normgrowth.weights.moments import BUDGET, Moments, accumulated, quantities
from normgrowth.weights.names import Reading
from normgrowth.weights.sources.series import Series, open_source
from normgrowth.weights.store import Store
from normgrowth.weights.walk import MEMORY, How, Progress, Selection, Window, measure_all, references


def trace(
    source: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    scope: str = "blocks",
    select: str | None = None,
    exclude: str | None = None,
    lags: Sequence[int] = (),
    first: bool = True,
    tokens_per_step: float | None = None,
    run: str | None = None,
    lint: bool = True,
    allow: Sequence[str] = (),
    endpoint: str | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    memory: int = MEMORY,
    cache: int = 0,
    progress: Progress | None = None,
) -> Records:
    """Norms, steps, directions and the growth budget of every tensor, layer, role and the model.

    out: a folder for the records, which also lets an interrupted trace go on where it was.
    lags: cosines to the checkpoint that many places back, beside the previous one.
    first: also compare with the first checkpoint (for a hub series that keeps one more on disk).
    lint: also look for checkpoints that lie, as `normgrowth.lint` does; it warns of faults, and
    `made_by["findings"]` has all that was found.
    engine: where to work, else threads of this process, as many as `workers`. memory: bytes of checkpoints that come
    over a network which they may hold together. cache: bytes of such to keep, for a process that asks again.
    """
    if any(lag < 1 for lag in lags):
        raise InputError(f"lags must be 1 or more, not {min(lags)}")
    if tokens_per_step is not None and not 0 < tokens_per_step < float("inf"):
        raise InputError(f"tokens per step must be a positive number, not {tokens_per_step}")
    if out == "":
        raise InputError("the folder for the records has an empty name")
    selection = Selection(scope, select, exclude)
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(out))
        series = open_source(source, allow=allow, endpoint=endpoint, scratch=store.scratch, cache=cache)
        plan = [references(i, lags, first) for i in range(len(series))]
        window = stack.enter_context(Window(series, plan))
        how = How(workers, engine, memory)
        readings, moments, beside = measure_all(series, plan, window, selection, store, lint, how, progress)
        notes = list(series.notes)
        findings = beside.gather(len(series), notes) if beside else None
        readings, moments = _without_copies(readings, moments, notes)
        problems = _problems(series, readings, moments)
        made_by = {
            "command": "trace",
            "source": series.label,
            "steps": [entry.step for entry in series.entries],
            "checkpoints": [entry.label for entry in series.entries],
            "selection": {"scope": scope, "select": select, "exclude": exclude},
            "lags": list(lags),
            "tokens_per_step": tokens_per_step,
            "notes": notes,
            "problems": problems,
            **({} if findings is None else {"findings": findings}),
            "versions": {
                "normgrowth": version("normgrowth"),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        name = run or Path(series.label.rstrip("/")).name or series.label
        with no_collection():
            records = _records(name, series, readings, moments, tokens_per_step, made_by)
        store.write(records)
    for remark in (*notes, *problems, *told(findings or ())):
        warnings.warn(remark, SeriesWarning, stacklevel=2)
    return records


def _without_copies(
    readings: list[Reading], moments: list[Moments], notes: list[str]
) -> tuple[list[Reading], list[Moments]]:
    """Leave out a head that was stored as a copy of the embedding it is tied to.

    Most formats forget that two names share their values. Two such matrices whose sums are equal to the
    bit in every checkpoint are one.
    """
    seen: dict[tuple[float, ...], str] = {}
    keep: list[int] = []
    for i, reading in sorted(enumerate(readings), key=lambda pair: pair[1].role == "head"):
        if reading.role in ("embedding", "head") and moments[0].square[i] > 0:
            sums = tuple(float(x) for m in moments for x in (m.numel[i], m.square[i], m.largest[i]))
            if sums in seen:
                notes.append(f"{reading.name}: equals {seen[sums]} in every checkpoint; counted once")
                continue
            seen[sums] = reading.name
        keep.append(i)
    if len(keep) == len(readings):
        return readings, moments
    keep.sort()
    return [readings[i] for i in keep], [m.chosen(keep) for m in moments]


def _problems(series: Series, readings: list[Reading], moments: list[Moments]) -> list[str]:
    """What a reader of the results must know before believing them."""
    problems: list[str] = []
    if len(series) == 1:
        problems.append(
            f"{series.entries[0].label}: one checkpoint only: norms, but no steps, angles or growth to measure"
        )
    for entry, found in zip(series.entries, moments, strict=True):
        bad = np.flatnonzero(found.nonfinite)
        if len(bad):
            more = f" and in {len(bad) - 1} more tensors" if len(bad) > 1 else ""
            problems.append(
                f"{entry.label}: {found.nonfinite[bad[0]]} of {found.numel[bad[0]]} values of tensor "
                f"{readings[bad[0]].name} are NaN or infinite{more}; what depends on them is NaN"
            )
    return problems


def _records(
    run: str,
    series: Series,
    readings: list[Reading],
    moments: list[Moments],
    tokens_per_step: float | None,
    made_by: dict[str, Any],
) -> Records:
    steps = [entry.step for entry in series.entries]
    blocks: list[Block] = []
    for scope, names, layers, roles, group in scopes_of(readings):
        grouped = [m if group is None else m.grouped(group, len(names)) for m in moments]
        by_step = [quantities(m) for m in grouped]
        # Quantities of the same steps make one block: the first has no previous, early ones no lags.
        alike: dict[tuple[int, ...], list[str]] = {}
        for quantity in dict.fromkeys(quantity for values in by_step for quantity in values):
            here = tuple(i for i, values in enumerate(by_step) if quantity in values)
            alike.setdefault(here, []).append(quantity)
        for here, defined in alike.items():
            stacked = {quantity: np.stack([by_step[i][quantity] for i in here]) for quantity in defined}
            blocks.append(Block(scope, names, layers, roles, [steps[i] for i in here], stacked))
        if len(steps) > 1:
            terms = (np.stack([values[term] for values in by_step[1:]]) for term in BUDGET)
            blocks.append(Block(scope, names, layers, roles, steps[1:], accumulated(*terms)))
    if tokens_per_step is not None:
        tokens = np.asarray(steps, np.float64)[:, None] * tokens_per_step
        blocks.append(Block("model", ["model"], [None], [None], steps, {"tokens": tokens}))
    return Records.from_blocks(run, blocks, made_by)


def scopes_of(readings: list[Reading]):
    """Each scope's items, and for each tensor the item it adds to."""
    tensors = [reading.name for reading in readings]
    yield "tensor", tensors, [r.layer for r in readings], [r.role for r in readings], None
    layers = {r.layer_name: r.layer for r in readings if r.layer_name is not None}
    if layers:
        place = {name: i for i, name in enumerate(layers)}
        group = [place.get(r.layer_name or "", -1) for r in readings]
        yield "layer", list(layers), list(layers.values()), [None] * len(layers), group
    roles = list(dict.fromkeys(r.role for r in readings))
    place = {role: i for i, role in enumerate(roles)}
    group = [place[r.role] for r in readings]
    yield "role", roles, [None] * len(roles), roles, group
    yield "model", ["model"], [None], [None], [0] * len(readings)
