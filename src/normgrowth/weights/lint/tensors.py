"""What is wrong with single tensors: their names, shapes and values, and whether they move with the rest."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from normgrowth.weights.lint.evidence import Evidence, Finding

Floats = NDArray[np.float64]

# The chance that no value of a tensor changed, if each does as often as in the intervals beside, is below
# exp(−SURE): in bfloat16 a gain near 1 honestly keeps its value over many small updates.
SURE = 20.0


def odd_runs(values: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Runs that depart from the rest. One change for good is reported where it comes; of several, those
    runs that differ from what most have."""
    ends = np.cumsum([len(list(run)) for _, run in groupby(values)]).tolist()
    runs = list(zip([0, *ends], ends, strict=False))
    if len(runs) <= 2:
        return runs[1:]
    usual = max(dict.fromkeys(values), key=list(values).count)
    return [run for run in runs if values[run[0]] != usual]


def index_faults(e: Evidence) -> Iterator[Finding]:
    """Missing, new, renamed, reshaped tensors, and other dtypes."""
    first = e.looks[0]
    if all(
        (look.names, look.shapes, look.dtypes) == (first.names, first.shapes, first.dtypes) and not look.spelt
        for look in e.looks
    ):
        return
    fields: dict[str, list[list[Hashable]]] = {"dtype": [], "shape": [], "spelt": [], "here": []}
    entries = [
        dict(zip(k.names, zip(k.dtypes, k.shapes, map(k.spelling, k.names), strict=True), strict=True))
        for k in e.looks
    ]
    for name in e.names:
        own = [found.get(name) for found in entries]
        known = [entry for entry in own if entry]
        for i, field in enumerate(("dtype", "shape", "spelt")):
            # Where it is absent it takes what it had before, or has first.
            filled, last = [], known[0][i]
            for entry in own:
                last = entry[i] if entry else last
                filled.append(last)
            fields[field].append(filled)
        fields["here"].append(
            [bool(entry) or name in look.hidden for entry, look in zip(own, e.looks, strict=True)]
        )

    def changes(field: str) -> Iterator[tuple[int, str, str, Hashable, Hashable]]:
        for name, values in zip(e.names, fields[field], strict=True):
            for start, stop in odd_runs(values):
                until = "on" if stop == len(values) else f"to {e.step(stop - 1)}"
                when = "here" if stop == start + 1 < len(values) else f"from here {until}"
                yield start, name, when, values[start], values[start - 1 if start else stop]

    for row, name, when, here, _ in changes("here"):
        if here:
            yield e.finding(row, name, "new", f"other steps do not have it; it is there {when}")
        elif copy := _tied(e, row, name):
            why = f"missing {when}; before, it was a copy of {copy}, which is there"
            yield e.finding(row, name, "missing", why, "remark")
        else:
            yield e.finding(row, name, "missing", f"other steps have it; it is missing {when}")
    for row, name, when, here, usual in changes("shape"):
        why = f"has shape {list(here)} {when}, {list(usual)} otherwise"  # type: ignore[call-overload]
        yield e.finding(row, name, "reshaped", why)
    for kind, field, text in (
        ("renamed", "spelt", "the tensor that other steps call {usual} is called {here} {when}"),
        (
            "dtype",
            "dtype",
            "stored as {here} {when}, as {usual} otherwise: the step to it has rounding in it",
        ),
    ):
        found = list(changes(field))
        severity = "remark" if kind == "dtype" else "fault"
        for row, group in groupby(sorted(found, key=lambda change: change[0]), key=lambda change: change[0]):
            rows = list(group)
            _, name, when, here, usual = rows[0]
            why = text.format(usual=usual, here=here, when=when)
            if len(rows) > 1 and len(rows) == len(e.looks[row].names):
                yield e.finding(row, "", kind, f"all {len(rows)} tensors: {why}", severity)
            else:
                for _, name, when, here, usual in rows:
                    yield e.finding(row, name, kind, text.format(usual=usual, here=here, when=when), severity)


def _tied(e: Evidence, row: int, name: str) -> str:
    """The tensor that a missing one was a copy of when it was last there: a head tied to its embedding."""
    i = e.column[name]
    there = [k for k in range(row) if np.isfinite(e.square[k, i])]
    if not there:
        return ""
    last = e.square[there[-1]]
    twins = [
        other
        for other in e.looks[row].names
        if last[e.column[other]] == last[i] > 0 and e.numel[e.column[other]] == e.numel[i]
    ]
    return twins[0] if twins else ""


def nonfinite_faults(e: Evidence, buffers: Mapping[str, str]) -> Iterator[Finding]:
    for row, look in enumerate(e.looks):
        bad = [i for i in np.flatnonzero(e.nonfinite[row]) if e.names[i] not in buffers]
        if len(bad) > 1 and len(bad) == len(look.names):
            total = int(e.nonfinite[row].sum())
            yield e.finding(
                row, "", "nonfinite", f"{total} values in all {len(bad)} tensors are NaN or infinite"
            )
            continue
        for i in bad:
            count = int(e.nonfinite[row, i])
            why = f"{count} of {int(e.numel[i])} values {'is' if count == 1 else 'are'} NaN or infinite"
            yield e.finding(row, e.names[i], "nonfinite", why)


# Tensors that stand still ----------------------------------------------------------------------------


def still_faults(e: Evidence, copies: set[int], buffers: Mapping[str, str]) -> Iterator[Finding]:
    """Tensors that did not move while others did.

    Never, or from the start up to a step, or up to the end: a frozen layer, a remark. In between, or only
    in the last interval, no schedule does that and it is a fault, unless rounding explains it: then few
    values change in the intervals beside, too.
    """
    n = len(e.looks)
    # Intervals that tell: not into or out of a copy, and not those where nothing moved at all.
    use = [k for k in range(1, n) if not {k - 1, k} & copies and (e.delta[k] > 0).any()]
    delta, changed, resting = e.delta[use], e.changed[use], e.still[use]
    for i, name in enumerate(e.names):
        own = [k for k in range(len(use)) if resting[k, i] or delta[k, i] > 0]
        still = [bool(resting[k, i]) for k in own]
        if not any(still) or not e.numel[i]:
            if n == 1 and name in buffers:
                yield e.finding(0, name, "buffer", _buffer(buffers[name], name, "counts as a parameter"))
            continue
        if all(still):
            yield _never_moved(e, i, buffers)
            continue
        ends = np.cumsum([len(list(run)) for _, run in groupby(still)]).tolist()
        for start, stop in zip([0, *ends], ends, strict=False):
            if not still[start]:
                continue
            sides = [own[k] for k in (start - 1, stop) if 0 <= k < len(own)]
            first, last = use[own[start]], use[own[stop - 1]]
            pace = min(_pace(delta, own[start], side) for side in sides)
            rate = min(changed[side, i] for side in sides) * min(1.0, pace)
            if not sure_to_change(e.numel[i], rate):
                continue
            span = f"did not move between {e.step(first - 1)} and {e.step(last)} while others did"
            # Between copies no interval tells of the time before, but the values do.
            earlier = [row for row in range(first) if row not in copies and e.square[row, i] > 0]
            if start == 0 and len(set(e.square[earlier, i])) <= 1:
                yield e.finding(first, name, "frozen", f"{span}, and moved afterwards", "remark")
            elif stop == len(own):
                alone = stop == start + 1 and len(own) > 2
                why = f"{span}; it moved before"
                yield e.finding(first, name, *(("stale", why) if alone else ("frozen", why, "remark")))
            else:
                why = f"{span}; it moved before and after"
                thawed = stop > start + 1 and (start == 0 or _catch_up(delta, i, *sides) < 1.5)
                yield e.finding(first, name, *(("frozen", why, "remark") if thawed else ("stale", why)))


def sure_to_change(numel: float, rate: float) -> bool:
    """Is it out of the question that none of so many values changes, if each does at this rate?"""
    return numel * -np.log1p(-min(rate, 0.99)) >= SURE


def _pace(delta: Floats, here: int, beside: int) -> float:
    """How far others moved in an interval, as a part of how far they did in one beside it."""
    both = (delta[here] > 0) & (delta[beside] > 0)
    return float(np.sqrt(np.median(delta[here, both] / delta[beside, both]))) if both.any() else 0.0


def _catch_up(delta: Floats, i: int, before: int, after: int) -> float:
    """What was not saved for several steps comes back in one: then its δ² is that of all of them."""
    both = (delta[before] > 0) & (delta[after] > 0)
    ratio = delta[after] / np.where(both, delta[before], np.nan)
    return float(ratio[i] / np.nanmedian(ratio))


def _never_moved(e: Evidence, i: int, buffers: Mapping[str, str]) -> Finding:
    name = e.names[i]
    rows = [row for row, look in enumerate(e.looks) if name in look.names]
    row = rows[1] if len(rows) > 1 else rows[0]
    if name in buffers:
        return e.finding(row, name, "buffer", _buffer(buffers[name], name, "never moves"))
    why = f"never moves, {e.step(rows[0])} to {e.step(rows[-1])}, while others do"
    match e.pattern[row, i]:
        case "zeros" | "ones" as which:
            return e.finding(row, name, "initial", f"{why}: still all {which}", "remark")
        case "normal" | "uniform" as shape:
            rms = np.sqrt(e.square[row, i] / e.numel[i])
            spread = f"still as it was drawn ({shape}, mean 0, rms {rms:.3g})"
            return e.finding(row, name, "initial", f"{why}: {spread}", "remark")
    return e.finding(row, name, "frozen", why, "remark")


def _buffer(what: str, name: str, does: str) -> str:
    return f"{does} and looks like a buffer ({what}); leave it out with --exclude '{_escaped(name)}'"


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")
