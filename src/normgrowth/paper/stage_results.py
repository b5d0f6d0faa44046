"""The results of the stages of a reproduction, as results of verbs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from normgrowth.paper.evidence import THEORY, TRAINED, TrainedModels
from normgrowth.records import Records
from normgrowth.results import Result, load
from normgrowth.stored_result import has_records

TABLES = (THEORY, "figure2_forms")  # stages whose numbers are in Table 1, claims and caveats


def stage_results(folder: Path) -> list[tuple[str, Result]]:
    """The results with the names of their stages; for a stage that trains models, also with the name of the model."""
    return [found for path in sorted((folder / "stages").glob("*")) for found in _results(path)]


def _results(folder: Path) -> Iterator[tuple[str, Result]]:
    name = folder.name
    if name in TABLES:
        return
    if not (folder / TRAINED).is_file():
        if has_records(folder):
            yield name, load(folder)
        return
    found = TrainedModels.read(folder)
    for model in found:
        yield f"{name}/{model.name}", model.run
    yield f"{name}/heads", found.models[0].heads  # one atlas is enough for a page
    if behaviors := [model.behavior for model in found if model.behavior]:
        yield (
            f"{name}/behavior",
            replace(
                behaviors[0],
                records=Records.joined([one.records for one in behaviors]),
                source=name,
                models={run: known for one in behaviors for run, known in one.models.items()},
                objective={run: known for one in behaviors for run, known in one.objective.items()},
            ),
        )
