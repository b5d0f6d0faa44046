"""docs/claims.md: the claims of the paper, judged on the models that were trained for the other pages.

python benchmarks/claims.py

The demo of `normgrowth reproduce` trains small models for minutes. These are the larger ones of docs/records: the
lab's on Penn Treebank and WikiText-2, the paper's encoders at its size, the grids of Figure 6. Networks with known
answers are computed anew.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from pages import DOCS, fill, table

from normgrowth import Records
from normgrowth.paper.claim import Judged, judged
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.errata import ERRATA
from normgrowth.paper.erratum import Checked, checked
from normgrowth.paper.stages.language_models import joined_models
from normgrowth.paper.stages.theory import theory
from normgrowth.report.wording import number

KEPT = DOCS / "records"
FAILS = {True: "yes", False: "no", None: "not measured"}


def evidence() -> dict[str, Records]:
    models = {path.name: Records.read(path) for path in sorted((KEPT / "lab").iterdir())}
    return {
        "theory": theory(),
        "language_models": joined_models(models),
        "scaling": Records.read(KEPT / "figure4"),
        "pretrained": Records.read(KEPT / "minilm"),
        "decay": Records.read(KEPT / "decay" / "adamw"),
    }


def counts(verdicts: list[Judged]) -> str:
    found = [one.ruling.verdict for one in verdicts]
    rows = [[verdict, str(found.count(verdict))] for verdict in dict.fromkeys(sorted(found, key=found.count))]
    return table(("verdict", "claims"), rows[::-1])


def claims(verdicts: list[Judged]) -> str:
    """A heading for each: tables of sentences cannot be read."""
    return "\n\n".join(
        f"### {one.claim.id}: {one.ruling.verdict}\n\n"
        f"{one.claim.statement} ({one.claim.where})\n\n"
        f"- **Published**: {one.claim.published}; {one.claim.source}\n"
        f"- **Rule**: {one.claim.rule}\n"
        f"- **Here**: {one.ruling.reason}{_measured(one.numbers)}"
        for one in verdicts
    )


def errata(found: list[Checked], kind: str) -> str:
    return "\n\n".join(
        f"### {one.erratum.id}\n\n"
        f"- **{'Printed' if kind == 'erratum' else 'Said, or done'}** ({one.erratum.where}): {one.erratum.printed}\n"
        f"- **True**: {one.erratum.true}\n"
        f"- **Fails here**: {FAILS[one.fails]}{_measured(one.numbers) or f' ({one.why})'}"
        for one in found
        if one.erratum.kind == kind
    )


def _measured(numbers: Mapping[str, float]) -> str:
    said = "; ".join(f"{name} {number(value, 3)}" for name, value in numbers.items())
    return f" *({said})*" if said else ""


def main(page: Path = DOCS / "claims.md") -> None:
    torch.set_num_threads(1)
    known = evidence()
    verdicts = [judged(claim, known) for claim in CLAIMS.values()]
    found = [checked(erratum, known) for erratum in ERRATA.values()]
    sections = {
        "counts": counts(verdicts),
        "claims": claims(verdicts),
        "errata": errata(found, "erratum"),
        "departures": errata(found, "departure"),
    }
    fill(page, sections)


if __name__ == "__main__":
    main()
