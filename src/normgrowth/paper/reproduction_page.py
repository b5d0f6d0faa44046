"""The HTML page of a reproduction: verdicts, figures and errata, and what the stages measured."""

from pathlib import Path

from normgrowth.paper.paper_figures import FIGURES
from normgrowth.paper.reproduction import Reproduction
from normgrowth.report.page.collect import collect
from normgrowth.report.page.content import content_of
from normgrowth.report.page.pieces import Picture
from normgrowth.report.page.write import PAGE, write_content


def write_page(folder: Path, result: Reproduction, figures: Path) -> Path:
    """Write the page. figures: the folder of figures; SVG files are shown with the verdicts of their claims."""
    pictures = []
    for name, figure in FIGURES.items():
        if not (path := figures / f"{name}.svg").is_file():
            continue
        judged = [claim for claim in result.claims if claim.figure == figure.name]
        said = " ".join(f"{claim.id}: {claim.verdict}. {claim.reason}" for claim in judged)
        title = f"Figure {figure.number}: {figure.title}"
        pictures.append(Picture(figure.name, title, f"{figure.title}. {said}", path.read_bytes()))
    return write_content(
        content_of(collect([folder]), pictures=pictures),
        folder / PAGE,
        title=f"Merrill et al. 2021, reproduced: {result.scale}",
        facts={"command": "normgrowth reproduce", "versions": result.provenance.versions},
    )
