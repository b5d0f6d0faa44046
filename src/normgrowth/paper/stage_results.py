"""What the stages of a reproduction measured, as results of verbs."""

from collections.abc import Iterator
from pathlib import Path

from normgrowth.checkpoints.selection import Selection
from normgrowth.network.heads.heads import Heads
from normgrowth.paper.evidence import LanguageModels
from normgrowth.records import Records, has_records
from normgrowth.results import Result, result_of
from normgrowth.trace.result import Trace

TABLES = ("theory",)  # whose records are tables of the reproduction


def stage_results(folder: Path) -> list[tuple[str, Result]]:
    """Each with the name of its stage; of a stage that trains models, with the name of the model, too."""
    stages = folder / "stages"
    if not stages.is_dir():
        return []
    with_records = sorted(path for path in stages.iterdir() if path.is_dir() and has_records(path))
    return [found for path in with_records if path.name not in TABLES for found in _results(path)]


def _results(folder: Path) -> Iterator[tuple[str, Result]]:
    records = Records.read(folder)
    if not (records.made_by.get("kind") or records.made_by.get("command")):
        return  # numbers that no verb returns
    if records.made_by.get("stage") != "language_models":
        yield folder.name, result_of(records, folder)
        return
    models = LanguageModels.read(records).models
    include = (records.made_by.get("selection") or {}).get("include")
    selection = Selection(include) if include else None
    for model in models:
        yield (
            f"{folder.name}/{model.name}",
            Trace(
                records=model.measured,
                source=model.name,
                run=model.name,
                selection=selection,
                tracked=True,
            ),
        )
    if models:
        yield f"{folder.name}/heads", Heads.from_records(models[0].heads)  # one atlas is enough for a page
