"""The terminal's view of `normgrowth dynamics`: plain rows and sentences, nothing computed here."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgrowth.report.terminal.console import Cells, literal, new_console, say, show
from normgrowth.report.wording import number, small

if TYPE_CHECKING:
    from rich.console import Console

ROWS = 14  # of checkpoints that a table shows


def print_dynamics(content: Mapping[str, Any], console: "Console | None" = None) -> None:
    """Norms as measured and as predicted, then what was found and what cannot be decided."""
    from rich.padding import Padding

    console = console or new_console()
    steps: Sequence[int] = content["steps"]
    chosen = _spread(len(steps))

    def column(title: str, values: Sequence[float | None], write: Any = number, rank: int = 0) -> Cells:
        cells = ["-" if values[i] is None else write(values[i]) for i in chosen]
        return Cells(title, cells, rank)

    models = content["models"]
    none = [None]  # the first checkpoint has no interval before it
    say(console, f"{content['trace']}: {content['what']}, {content['schedule']}", "bold")
    if content.get("parameters"):
        say(console, f"parameters: {content['parameters']}", "dim")
    show(
        console,
        [
            column("step", steps, lambda step: f"{step:,}"),
            column("norm", content["norms"]),
            column("if\nmisaligned", models["misaligned"]["predicted"]),
            column("if\naligned", models["aligned"]["predicted"]),
            column("κ, squares\nadd", [*none, *models["misaligned"]["each"]], _four, rank=1),
            column("κ, lengths\nadd", [*none, *models["aligned"]["each"]], _four, rank=3),
            column("step\nsize", [*none, *content["step_sizes"]], _four, rank=4),
            column("alignment", [*none, *content["alignments"]], small, rank=2),
        ],
    )
    if len(chosen) < len(steps):
        say(console, f"{len(chosen)} of {len(steps)} checkpoints; --json has them all.", "dim")
    sections = (
        ("Dynamics", content["findings"]),
        ("Cannot be decided", content["undecided"]),
        ("Weight decay", content["decay_findings"]),
        ("Direction", content["direction"]["findings"]),
        ("Uniformity", content["uniformity_findings"]),
    )
    for title, sentences in sections:
        if sentences:
            say(console, title, "bold")
            for sentence in sentences:
                console.print(Padding(literal(console, sentence), (0, 0, 0, 2), expand=False))


def _four(x: float) -> str:
    return number(x, 4)


def _spread(count: int) -> list[int]:
    """At most ROWS places from first to last."""
    rows = min(count, ROWS)
    return sorted({round(i * (count - 1) / max(1, rows - 1)) for i in range(rows)})
