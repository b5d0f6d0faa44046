"""The inputs of `report` -> labeled results.

A folder stands for its own result, or else for the results in its subfolders. A training run includes the tensors that
its tracker measured, a reproduction includes the results of its stages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from normgrowth.errors import InputError
from normgrowth.lab.run import Run
from normgrowth.measurements import is_named, named_result
from normgrowth.paper.reproduction import Reproduction
from normgrowth.records import Records
from normgrowth.report.page.content import PageEntry
from normgrowth.results import Result, load_all
from normgrowth.stored_result import StoredResult, has_records
from normgrowth.text import labels
from normgrowth.trace.result import Trace

TRACKER = "tracker"  # subfolder of a training run
# The levels of a tracker's log that a page shows; of tensors, the norms and the values that are not finite.
SHOWN = {
    **dict.fromkeys(("model", "part", "layer", "layer_matrices", "role")),
    "tensor": ("norm", "nonfinite"),
}

Given = Result | Path | str


def collect(given: Sequence[Given]) -> list[PageEntry]:
    found: list[tuple[str | Path, Result]] = []  # a name, or the folder of the result
    for one in given:
        if isinstance(one, Result):
            found.append((_name(one), one))
        elif is_named(one):
            found.append((str(one), named_result(str(one))))
        else:
            found += _in_folder(Path(one))
    short = iter(labels([place for place, _ in found if isinstance(place, Path)]))
    entries: dict[str, Result] = {}
    for place, result in found:
        entries[_free(next(short) if isinstance(place, Path) else place, entries)] = result
    return [PageEntry(label, result) for label, result in entries.items()]


def _in_folder(folder: Path) -> Iterator[tuple[Path, Result]]:
    empty = True
    for path, result in load_all(folder, levels=SHOWN):
        empty = False
        if isinstance(result, Trace | Run):
            yield (path.parent if path.name == TRACKER else path), _with_tracker(result, path / TRACKER)
            continue
        yield path, result
        if isinstance(result, Reproduction):
            yield from ((path / "stages" / stage, one) for stage, one in result.stage_results(path))
    if empty:
        raise InputError(
            f"{folder}: no results in this folder or its subfolders; commands write them with -o DIR"
        )


def _with_tracker(result: Trace | Run, folder: Path) -> Trace | Run:
    """The run with the tensors and roles that its tracker measured; its own records have the model and the layers."""
    if not folder.is_dir() or not has_records(folder):
        return result
    tracked = StoredResult.read(folder, SHOWN).records
    if len(result.records.where(level="model", quantity="norm")):
        norms, there = tracked.where(quantity="norm"), result.records.where(quantity="norm").distinct("level")
        parts = [norms.where(level=level) for level in ("tensor", "role") if level not in there]
    else:
        parts = [tracked]
    return replace(result, records=Records.joined([result.records, *parts]))


def _name(result: Result) -> str:
    return str(getattr(result, "source", "") or getattr(result, "run", "") or result.kind)


def _free(label: str, taken: dict[str, Result]) -> str:
    numbered = (label if n == 1 else f"{label} ({n})" for n in range(1, len(taken) + 2))
    return next(one for one in numbered if one not in taken)
