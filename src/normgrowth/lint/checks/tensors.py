"""Check names, shapes, dtypes and values of single tensors: missing, new, renamed, reshaped, NaN."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from normgrowth.lint.step_table import StepTable
from normgrowth.trace.sampling.finding import Finding, Kind


def odd_runs(values: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the runs of equal values, as (start, stop), that deviate from the rest.

    If the value changes once, this is the run after the change. If it changes several times, it is every run whose
    value is not the most frequent one.
    """
    ends = np.cumsum([len(list(run)) for _, run in groupby(values)]).tolist()
    runs = list(zip([0, *ends], ends, strict=False))
    if len(runs) <= 2:
        return runs[1:]
    usual = max(dict.fromkeys(values), key=list(values).count)
    return [run for run in runs if values[run[0]] != usual]


def index_faults(e: StepTable) -> Iterator[Finding]:
    """Yield findings for missing, new, renamed and reshaped tensors, and for changed dtypes."""
    first = e.sampled[0]
    if all(
        (sample.names, sample.shapes, sample.dtypes) == (first.names, first.shapes, first.dtypes)
        and not sample.spelled
        for sample in e.sampled
    ):
        return
    fields: dict[str, list[list[Hashable]]] = {"dtype": [], "shape": [], "spelled": [], "here": []}
    entries = [
        dict(zip(k.names, zip(k.dtypes, k.shapes, map(k.spelling, k.names), strict=True), strict=True))
        for k in e.sampled
    ]
    for name in e.names:
        own = [found.get(name) for found in entries]
        known = [entry for entry in own if entry]
        for i, field in enumerate(("dtype", "shape", "spelled")):
            # Where the tensor is absent, use its previous value, or its first one.
            filled, last = [], known[0][i]
            for entry in own:
                last = entry[i] if entry else last
                filled.append(last)
            fields[field].append(filled)
        fields["here"].append(
            [bool(entry) or name in sample.hidden for entry, sample in zip(own, e.sampled, strict=True)]
        )

    def changes(field: str) -> Iterator[tuple[int, str, str, Hashable, Hashable]]:
        for name, values in zip(e.names, fields[field], strict=True):
            for start, stop in odd_runs(values):
                until = "on" if stop == len(values) else f"to {e.step(stop - 1)}"
                when = "here" if stop == start + 1 < len(values) else f"from here {until}"
                yield start, name, when, values[start], values[start - 1 if start else stop]

    for row, name, when, here, _ in changes("here"):
        if here:
            yield e.finding(row, name, "new", f"exists only {when}")
        elif copy := _tied(e, row, name):
            why = f"missing {when}; before, it was a copy of {copy}, which is still stored"
            yield e.finding(row, name, "missing", why, "remark")
        else:
            yield e.finding(row, name, "missing", f"missing {when}; other steps have it")
    for row, name, when, here, usual in changes("shape"):
        why = f"shape {list(here)} {when}, {list(usual)} in other steps"  # type: ignore[call-overload]
        yield e.finding(row, name, "reshaped", why)
    renamed_and_stored: tuple[tuple[Kind, str, str], ...] = (
        ("renamed", "spelled", "{usual} in other steps, renamed to {here} {when}: its values continue"),
        (
            "dtype",
            "dtype",
            "stored as {here} {when}, as {usual} in other steps: rounding is part of this step",
        ),
    )
    for kind, field, text in renamed_and_stored:
        found = list(changes(field))
        severity = "remark" if kind == "dtype" else "fault"
        for row, group in groupby(sorted(found, key=lambda change: change[0]), key=lambda change: change[0]):
            rows = list(group)
            _, name, when, here, usual = rows[0]
            why = text.format(usual=usual, here=here, when=when)
            if len(rows) > 1 and len(rows) == len(e.sampled[row].names):
                yield e.finding(row, "", kind, f"all {len(rows)} tensors: {why}", severity)
            else:
                for _, name, when, here, usual in rows:
                    yield e.finding(row, name, kind, text.format(usual=usual, here=here, when=when), severity)


def _tied(e: StepTable, row: int, name: str) -> str:
    """Return the tensor that a missing tensor was last a copy of (a head tied to its embedding), or ""."""
    i = e.column[name]
    there = [k for k in range(row) if np.isfinite(e.square[k, i])]
    if not there:
        return ""
    last = e.square[there[-1]]
    twins = [
        other
        for other in e.sampled[row].names
        if last[e.column[other]] == last[i] > 0 and e.numel[e.column[other]] == e.numel[i]
    ]
    return twins[0] if twins else ""


def nonfinite_faults(e: StepTable, buffers: Mapping[str, str]) -> Iterator[Finding]:
    for row, sample in enumerate(e.sampled):
        bad = [i for i in np.flatnonzero(e.nonfinite[row]) if e.names[i] not in buffers]
        if len(bad) > 1 and len(bad) == len(sample.names):
            total = int(e.nonfinite[row].sum())
            yield e.finding(
                row, "", "nonfinite", f"{total} values in all {len(bad)} tensors are NaN or infinite"
            )
            continue
        for i in bad:
            count = int(e.nonfinite[row, i])
            why = f"{count} of {int(e.numel[i])} values {'is' if count == 1 else 'are'} NaN or infinite"
            yield e.finding(row, e.names[i], "nonfinite", why)
