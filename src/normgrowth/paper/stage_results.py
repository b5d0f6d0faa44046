"""The results of the stages of a reproduction, as results of verbs."""

from collections.abc import Iterator
from pathlib import Path

from normgrowth.network.behavior.result import Behavior
from normgrowth.paper.evidence import TrainedModels
from normgrowth.records import Records
from normgrowth.results import Result, result_of
from normgrowth.stored_result import StoredResult, has_records
from normgrowth.trace.result import Trace

TABLES = ("theory",)  # stages whose records are tables of the reproduction


def stage_results(folder: Path) -> list[tuple[str, Result]]:
    """The results with the names of their stages; for a stage that trains models, also with the name of the model."""
    stages = folder / "stages"
    if not stages.is_dir():
        return []
    with_records = sorted(path for path in stages.iterdir() if path.is_dir() and has_records(path))
    return [found for path in with_records if path.name not in TABLES for found in _results(path)]


def _results(folder: Path) -> Iterator[tuple[str, Result]]:
    stored = StoredResult.read(folder)
    if stored.kind is None:
        return  # numbers that no verb returns
    if stored.fields.get("stage") != "language_models":
        yield folder.name, result_of(stored, folder)
        return
    models = TrainedModels.read(stored)
    for model in models:
        yield (
            f"{folder.name}/{model.name}",
            Trace(
                records=model.measured,
                source=model.name,
                run=model.name,
                selection=models.selection,
                tracked=True,
            ),
        )
    for model in models.models[:1]:  # one atlas is enough for a page
        yield f"{folder.name}/heads", model.heads
    predictions = Records.joined([model.behavior.records for model in models])
    if len(predictions):
        yield f"{folder.name}/behavior", Behavior(records=predictions, source=folder.name)
