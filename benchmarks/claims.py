"""Make docs/claims.md: the claims of the paper, judged on the models that were trained for the other pages.

python benchmarks/claims.py                 make the page
python benchmarks/claims.py --demo FOLDER   first keep the language models of `normgrowth reproduce -o FOLDER`

The demo of `normgrowth reproduce` trains small models for minutes. This script uses the larger models of docs/records:
those of the lab on Penn Treebank and WikiText-2, the paper's encoders at its size, the grids of Figure 6. Networks with
known answers are computed again. Claims on language models are judged on the larger ones and on those of the demo,
docs/records/demo, whose weights grow more; where some records lack a measurement, on the models that have it.
"""

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import torch
from pages import DOCS, fill, table

from normgrowth.lab.settings import TrainSettings
from normgrowth.network.measured import ModelInfo
from normgrowth.paper.claim import check, judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.caveats import CAVEATS
from normgrowth.paper.discrepancies.departures import DEPARTURES
from normgrowth.paper.discrepancies.errata import ERRATA
from normgrowth.paper.evidence import Evidence, TrainedModel, TrainedModels
from normgrowth.paper.reproduction import Check, Judgment
from normgrowth.paper.stages.known_networks import theory
from normgrowth.paper.statements import statements
from normgrowth.report.sentences.reproduction import measured_numbers
from normgrowth.results import load

KEPT = DOCS / "records"
# stage -> its folder in docs/records, and the command of its measurement; each language model has its own command
RECORDS = {
    "language_models": ("lab", None),
    "scaling": ("figure4", "normgrowth scaling paper"),
    "pretrained": ("minilm", "normgrowth saturation minilm --text brown.txt --random-init 3"),
    "figure2_forms": ("figure2_forms", "python benchmarks/levels.py forms"),
    "decay": ("decay/adamw", "normgrowth sweep wikitext-2 --data corpora -o sweep"),
}
NOT_MEASURED = "not measured here"
CONFIRMED = {True: "yes", False: "no", None: "not measured"}


def evidence() -> Evidence:
    models = tuple(TrainedModel.read(path) for path in sorted((KEPT / "lab").iterdir()))
    return Evidence(
        {
            "theory": theory(),
            "language_models": TrainedModels(models),
            "scaling": load(KEPT / "figure4"),
            "pretrained": load(KEPT / "minilm"),
            "figure2_forms": load(KEPT / "figure2_forms"),
            "decay": load(KEPT / "decay" / "adamw"),
        }
    )


def with_demo(larger: Evidence, *, complete: bool = False) -> Evidence:
    """The larger language models and those of the demo, whose weights grow more. complete: with every measurement."""
    models = [model for model in larger.language_models if not complete or model.behavior is not None]
    together = TrainedModels((*models, *TrainedModels.read(KEPT / "demo").models))
    return Evidence({**larger.results, "language_models": together})


def keep_demo(folder: Path) -> None:
    """Write the results of the demo's language models."""
    found = TrainedModels.read(folder / "stages" / "language_models")
    TrainedModels(tuple(map(_without_folders, found.models))).write(KEPT / "demo")


def _without_folders(model: TrainedModel) -> TrainedModel:
    """The model with the names of its checkpoints instead of their paths."""
    behavior = model.behavior
    return replace(
        model,
        trace=replace(model.trace, checkpoints=tuple(Path(path).name for path in model.trace.checkpoints)),
        heads=replace(
            model.heads,
            models={run: replace(one, model=_named(one.model)) for run, one in model.heads.models.items()},
        ),
        behavior=behavior
        and replace(behavior, models={run: _named(one) for run, one in behavior.models.items()}),
    )


def _named(model: ModelInfo) -> ModelInfo:
    return replace(model, name=Path(model.name).name)


def judged(larger: Evidence) -> list[Judgment]:
    """Each claim, judged on all models, or else on those that have every measurement."""
    models, complete, found = with_demo(larger), with_demo(larger, complete=True), []
    for claim in CLAIMS.values():
        one = judge(claim, models)
        if one.verdict == NOT_MEASURED and set(claim.needs) == {"language_models"}:
            one = judge(claim, complete)
        found.append(one)
    return found


def counts(judgments: list[Judgment]) -> str:
    found = [one.verdict for one in judgments]
    rows = [[verdict, str(found.count(verdict))] for verdict in dict.fromkeys(sorted(found, key=found.count))]
    return table(("verdict", "claims"), rows[::-1])


def claims(judgments: list[Judgment], larger: Evidence) -> str:
    """Return the claims with a heading each: tables of sentences are hard to read."""
    return "\n\n".join(
        f"### {one.id}: {one.verdict}\n\n"
        f"{one.statement} ({one.where})\n\n"
        f"- **Published**: {one.published}; source: {one.source}\n"
        f"- **Rule**: {one.rule}\n"
        f"- **Here**: {one.reason}{_measured(one.measured)}\n"
        f"- **Scope**: {one.scope}\n"
        f"- **Data**: {one.data}\n"
        f"- **What would change it**: {one.would_change}\n"
        f"- **Command**: {_command(one, larger)}"
        for one in judgments
    )


def _command(one: Judgment, larger: Evidence) -> str:
    """Return the command that measures a claim, and the records that its numbers on the page are from."""
    command = f"`normgrowth reproduce --only {one.id}`"
    folders = [f"`docs/records/{RECORDS[stage][0]}`" for stage in one.needs if stage in RECORDS]
    if not folders or one.verdict == NOT_MEASURED:
        return command
    if "language_models" in one.needs:
        if judge(CLAIMS[one.id], with_demo(larger)).verdict == NOT_MEASURED:
            measured = [model.name for model in larger.language_models if model.behavior is not None]
            folders = [f"`docs/records/lab/{name}`" for name in measured]
        folders.append("`docs/records/demo`")
    return (
        f"{command} measures it on the models of the demo. The numbers above are from {' and '.join(folders)}, see "
        "[Records and their commands](#records-and-their-commands)"
    )


def records() -> str:
    """Return a table with the command that made each record."""
    rows = [[f"`{folder}`", f"`{command}`"] for folder, command in RECORDS.values() if command]
    lab = {path.name: TrainedModel.read(path).run.settings for path in sorted((KEPT / "lab").iterdir())}
    rows += [[f"`lab/{name}`", f"`{train_command(name, settings)}`"] for name, settings in lab.items()]
    return table(("record", "command"), rows)


def train_command(name: str, settings: TrainSettings) -> str:
    """Return the `normgrowth train` line with these settings."""
    words = ["normgrowth", "train", settings.corpus, "--data", "corpora", "-o", f"runs/{name}"]
    for field in fields(TrainSettings):
        value, flag = getattr(settings, field.name), field.name.replace("_", "-")
        if field.name == "corpus" or value == field.default:
            continue
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)


def checks(found: list[Check], stated: str, correct: str) -> str:
    return "\n\n".join(
        f"### {one.id}\n\n"
        f"- **{stated}** ({one.where}): {one.stated}\n"
        f"- **{correct}**: {one.correct}\n"
        f"- **Confirmed here**: {CONFIRMED[one.differs]}{_measured(one.measured) or f' ({one.reason})'}"
        for one in found
    )


def covered(judgments: list[Judgment], found: list[Check]) -> str:
    """Return a table with a row for each statement of the paper."""
    by_id, checked = {one.id: one for one in judgments}, {one.id: one for one in found}
    rows = [
        [one.where, one.statement, "<br>".join(map(_link, one.by)) or "-", one.judged(by_id, checked)]
        for one in statements()
    ]
    counts = Counter(bool(one.by) for one in statements())
    said = f"{sum(counts.values())} statements: {counts[True]} are covered, {counts[False]} say why they are not."
    return f"{said}\n\n{table(('where', 'statement', 'covered by', 'verdict'), rows)}"


def _link(reference: str) -> str:
    """Return the function name of a test; for all others the kind and the id."""
    kind, _, name = reference.rpartition(":")
    return f"`{name}`" if not kind or kind.startswith("test") else f"{kind} `{name}`"


def _measured(numbers: Mapping[str, float | None]) -> str:
    said = measured_numbers(numbers)
    return f" *({said})*" if said else ""


def main(page: Path = DOCS / "claims.md") -> None:
    torch.set_num_threads(1)
    known = evidence()
    judgments = judged(known)
    errata, departures, caveats = (
        [check(one, known) for one in group.values()] for group in (ERRATA, DEPARTURES, CAVEATS)
    )
    sections = {
        "statements": covered(judgments, [*errata, *departures, *caveats]),
        "counts": counts(judgments),
        "claims": claims(judgments, known),
        "records": records(),
        "errata": checks(errata, "Printed", "Correct"),
        "departures": checks(departures, "Code", "Should be"),
        "caveats": checks(caveats, "Printed", "Limit"),
    }
    fill(page, sections)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--demo", type=Path, metavar="FOLDER")
    if (given := parser.parse_args().demo) is not None:
        keep_demo(given)
    main()
