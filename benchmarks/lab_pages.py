"""Make the pictures and tables of docs/train.md from the records in docs/records/lab."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pages import DOCS, fill, picture
from pages import table as as_table

from normgrowth import Records, fit
from normgrowth.fit.result import Fits
from normgrowth.lab.settings import TrainSettings
from normgrowth.network.heads.result import Heads
from normgrowth.paper.evidence import TrainedModel
from normgrowth.paper.published.figure3 import figure3
from normgrowth.report.figures.heads import atlas
from normgrowth.report.figures.style import BLUE, GRAY, ORANGE, laid_out, style
from normgrowth.report.grids import Grids
from normgrowth.report.numbers import signed

Floats = NDArray[np.float64]
COLORS = {"paper_pre_norm": BLUE, "usual_pre_norm": "#009e73", "post_norm": ORANGE}
NAMES = {"paper_pre_norm": "paper's pre-norm", "usual_pre_norm": "usual pre-norm", "post_norm": "post-norm"}
SATURATED = ("argmax-like", "previous-token", "sink", "mean-like", "in between")


@dataclass(frozen=True)
class Run:
    """One run of the lab and its records."""

    model: TrainedModel

    @property
    def settings(self) -> TrainSettings:
        return self.model.run.settings

    @property
    def group(self) -> str:
        corpus = {"penn": "PTB", "wikitext-2": "WikiText-2"}[self.settings.corpus]
        optimizer = {"adamw": "AdamW", "sgd": "SGD"}[self.settings.optimizer]
        return f"{corpus}, {optimizer}" + (", leaking mask" if self.settings.leaking else "")

    @property
    def label(self) -> str:
        seed = f", seed {self.settings.seed}" if self.settings.seed else ""
        return NAMES[self.settings.kind] + seed

    @property
    def color(self) -> str:
        return COLORS[self.settings.kind]

    @cached_property
    def tracked(self) -> Grids:
        return Grids(self.model.run.records)

    @cached_property
    def traced(self) -> Grids:
        return Grids(self.model.trace.records)

    @property
    def heads(self) -> Heads:
        return self.model.heads

    @cached_property
    def fits(self) -> Fits:
        return fit(*self.tracked.model("norm"))

    def ends(self, quantity: str, scale: float | None = None) -> tuple[float, float]:
        grid = self.tracked.of("model", quantity, scale=scale)
        values = grid.values[np.isfinite(grid.values)]
        return float(values[0]), float(values[-1])

    def growth_of_steps(self) -> str:
        """What ‖δ‖² adds to ‖θ‖², over the measured steps."""
        whole, steps = (float(self.tracked.model(f"growth{term}")[1].sum()) for term in ("", "_steps"))
        return share_or_terms(whole, steps, whole - steps)

    def growth_between_checkpoints(self) -> str:
        """The same with δ between consecutive checkpoints, whose steps double."""
        norms = self.traced.model("norm")[1]
        whole = float(norms[-1] ** 2 - norms[0] ** 2)
        steps = whole * float(self.traced.model("total_share_steps")[1][-1])
        return share_or_terms(whole, steps, whole - steps)

    def factors(self) -> Floats:
        """The factor by which the norm of each layer grew, from the first to the last checkpoint."""
        norms = self.traced.of("layer", "norm").values
        return norms[-1] / norms[0]


def share_or_terms(whole: float, steps: float, alignment: float) -> str:
    """The share of the steps in the growth, or both terms if one of them is negative."""
    if min(steps, alignment) >= 0:
        return f"{steps / whole:.0%}"
    terms = f"steps {signed(steps, 3)}, alignment {signed(alignment, 3)} of {signed(whole, 3)}"
    return terms.replace("-", "−")


def write(folder: Path) -> None:
    runs = [Run(TrainedModel.read(path)) for path in sorted(folder.iterdir()) if path.is_dir()]
    fill(DOCS / "train.md", {name: make(runs) for name, make in SECTIONS.items()})
    for name, draw in PICTURES.items():
        picture(draw(runs), f"lab_{name}")


# Tables ----------------------------------------------------------------------------------------------


def table(titles: Sequence[str], row: Callable[[Run], list[str]], runs: Sequence[Run]) -> str:
    lines = [[run.group, run.label, *row(run)] for run in ordered(runs)]
    return as_table(("corpus, optimizer", "model", *titles), lines).replace("-0.", "−0.")


def ordered(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.group, list(NAMES).index(run.settings.kind), run.settings.seed))


def learned(runs: Sequence[Run]) -> str:
    def row(run: Run) -> list[str]:
        best, words = run.tracked.model("dev_loss")[1].min(), run.model.frequency_loss
        facts = [
            f"{run.settings.lr:g}",
            f"{run.model.run.steps:,}",
            f"{best:.3f}",
            f"{words:.3f}",
        ]
        return [*facts, "yes" if best < words else "no", f"{run.ends('test_perplexity')[1]:,.0f}"]

    titles = ["rate", "steps", "dev loss", "word frequencies", "learned", "test perplexity"]
    return table(titles, row, runs)


def growth(runs: Sequence[Run]) -> str:
    def row(run: Run) -> list[str]:
        (first, last), factors = run.ends("norm"), run.factors()
        best, power = run.fits.best, run.fits["power"]
        low, high = power.interval("p")
        return [
            f"{first:.1f} → {last:.1f}",
            f"{last / first:.3f}",
            f"{factors.min():.3f} to {factors.max():.3f}",
            f"{best.law}, {best.r2:.4f}",
            f"{power.params['p']:.2f} [{low:.2f}, {high:.2f}]",
            f"{run.fits['sqrt'].r2:.4f}",
            run.growth_of_steps(),
            run.growth_between_checkpoints(),
        ]

    law = ["best law, r²", "p in a·t^p + b", "r² of a·√t + b"]
    return table(
        [
            "norm",
            "factor",
            "factor by layer",
            *law,
            "growth by measured steps",
            "by changes between checkpoints",
        ],
        row,
        runs,
    )


LEVELS = (("saturation", None), ("saturation_others", None), ("saturation", 1000.0))  # quantity, scale


def levels(runs: Sequence[Run]) -> str:
    def row(run: Run) -> list[str]:
        cells = [f"{first:.3f} → {last:.3f}" for first, last in starmap(run.ends, LEVELS)]
        above = [own - other for own, other in zip(*starmap(run.ends, LEVELS[:2]), strict=True)]
        return [*cells, f"{above[0]:.3f} → {above[1]:.3f}"]

    return table(["saturation", "to other tokens", "at c = 1000", "above other tokens"], row, runs)


def attended(runs: Sequence[Run]) -> str:
    def row(run: Run) -> list[str]:
        grids = Grids(run.heads.records)
        (known,) = run.heads.models.values()
        kinds = list(known.saturated_kinds.values())
        counts = ", ".join(f"{n} {kind}" for kind in SATURATED if (n := kinds.count(kind)))
        spread = grids.of("head", "attended_spread").values
        ones = [(values < 0.01).sum() for values in spread]
        entropy = grids.model("entropy_share")[1]
        return [
            f"{ones[0]} → {ones[-1]} of {len(kinds)}",
            f"{(spread[-1] > 0.9).sum()}",
            counts,
            f"{entropy[0]:.2f} → {entropy[-1]:.2f}",
        ]

    return table(["heads at one position", "heads at all", "saturated heads", "entropy / log n"], row, runs)


SECTIONS: dict[str, Callable[[Sequence[Run]], str]] = {
    "learned": learned,
    "growth": growth,
    "levels": levels,
    "heads": attended,
}


# Pictures --------------------------------------------------------------------------------------------


def panels(
    runs: Sequence[Run],
    rows: Sequence[str],
    draw: Callable[[Axes, int, Run], None],
    log: bool = True,
    share: Literal["row", "none"] = "row",
) -> Figure:
    """Draw a column per corpus and optimizer and a row per quantity; the color shows where the norm layers are.

    share: whether all columns have the same scale.
    """
    groups = list(dict.fromkeys(run.group for run in ordered(runs)))
    with style():
        figure = Figure(figsize=(max(2.1 * len(groups) + 0.8, 4.6), 1.9 * len(rows) + 0.7))
        axes = figure.subplots(len(rows), len(groups), squeeze=False, sharex="col", sharey=share)
        for column, group in enumerate(groups):
            for row, title in enumerate(rows):
                ax = axes[row, column]
                for run in (run for run in runs if run.group == group):
                    draw(ax, row, run)
                if log:
                    ax.set_xscale("symlog", linthresh=1)
                    ax.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1k"])
                    ax.set_xlim(left=-0.2)
                if column == 0:
                    ax.set_ylabel(title)
            axes[0, column].set_title(group.replace(", leaking", ",\nleaking"))
            axes[-1, column].set_xlabel("training step")
        used = {run.settings.kind for run in runs}
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], color=COLORS[kind], label=name) for kind, name in NAMES.items() if kind in used
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        return laid_out(figure)


def curve(ax: Axes, run: Run, found: tuple[Any, Any], **look: Any) -> None:
    ax.plot(*found, color=run.color, **{"linewidth": 1.3, **look})


def draw_norm(runs: Sequence[Run]) -> Figure:
    def draw(ax: Axes, row: int, run: Run) -> None:
        steps, norms = run.tracked.model("norm")
        if row == 0:
            curve(ax, run, (steps, norms / norms[0]), linestyle="", marker="o", markersize=1.6, alpha=0.6)
            at = np.linspace(steps[0], steps[-1], 200)
            curve(ax, run, (at, run.fits.best.predict(at) / norms[0]), linewidth=0.9)
        else:
            layers = run.tracked.of("layer", "norm")
            for values in layers.values.T:
                curve(ax, run, (layers.steps, values / values[0]), linewidth=0.8, alpha=0.7)

    return panels(
        _true(runs), ["norm over the first\n(line: best law)", "of each layer"], draw, log=False, share="none"
    )


def draw_budget(runs: Sequence[Run]) -> Figure:
    def draw(ax: Axes, row: int, run: Run) -> None:
        if row == 0:
            steps, values = run.tracked.model("alignment")
            curve(ax, run, (_smooth(steps), _smooth(values)))
            ax.axhline(0, color=GRAY, linewidth=0.6)
        else:
            steps, growth = run.tracked.model("growth")
            total = growth.cumsum()
            given = run.tracked.model("growth_steps")[1].cumsum()
            grown = np.abs(total) > 0.1 * np.abs(total[-1])  # a share of almost no growth is meaningless
            curve(ax, run, (steps, np.where(grown, given / total, np.nan)))
            ax.axhline(1, color=GRAY, linewidth=0.6)
            ax.set_ylim(bottom=0)

    return panels(
        _true(runs),
        ["alignment cos(δ, θ)\n(mean of 20)", "share of growth\nby steps, so far"],
        draw,
        log=False,
    )


def draw_direction(runs: Sequence[Run]) -> Figure:
    def draw(ax: Axes, row: int, run: Run) -> None:
        reference = ("previous", "first")[row]
        curve(ax, run, run.traced.model("cosine", reference), marker="o", markersize=2.5)

    return panels(_true(runs), ["cosine to the\ncheckpoint at half the step", "cosine to the first"], draw)


def draw_saturation(runs: Sequence[Run]) -> Figure:
    def draw(ax: Axes, row: int, run: Run) -> None:
        steps, own = run.tracked.model("saturation")
        others = run.tracked.model("saturation_others")[1]
        if row == 0:
            curve(ax, run, (steps, own), marker="o", markersize=2.5)
            curve(ax, run, (steps, others), linestyle=":")
        else:
            curve(ax, run, (steps, own - others), marker="o", markersize=2.5)

    return panels(runs, ["saturation\n(dotted: to others)", "above other tokens"], draw)


def draw_heads(runs: Sequence[Run]) -> Figure:
    def draw(ax: Axes, row: int, run: Run) -> None:
        grids = Grids(run.heads.records)
        if row == 0:
            heads = grids.of("head", "attended_spread")
            for values in heads.values.T:
                curve(ax, run, (heads.steps, values), linewidth=0.6, alpha=0.6)
            ax.set_ylim(-0.05, 1.05)
        else:
            quantity = ("", "entropy_share", "hard_distance")[row]
            heads = grids.of("head", quantity)
            curve(ax, run, (heads.steps, np.median(heads.values, 1)))
            ax.fill_between(
                heads.steps,
                *np.quantile(heads.values, [0.1, 0.9], axis=1),
                color=run.color,
                alpha=0.15,
                linewidth=0,
            )

    return panels(
        runs,
        ["saturated: 0 one\nposition, 1 all", "soft: entropy / log n", "soft to hard:\ntotal variation"],
        draw,
    )


def draw_masks(runs: Sequence[Run]) -> Figure:
    """Draw Figure 3 for PTB with AdamW, with the true mask and with the mask of the authors' code."""
    chosen = [run for run in ordered(runs) if run.group.startswith("PTB, AdamW") and not run.settings.seed]
    return _together(chosen).plot.positions(published=figure3(83))


def draw_atlas(runs: Sequence[Run]) -> Figure:
    chosen = [run for run in ordered(runs) if run.group == "PTB, AdamW" and not run.settings.seed]
    drawn = atlas(_together(chosen))
    assert drawn is not None
    return drawn


PICTURES: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "norm": draw_norm,
    "budget": draw_budget,
    "direction": draw_direction,
    "saturation": draw_saturation,
    "heads": draw_heads,
    "masks": draw_masks,
    "atlas": draw_atlas,
}


def _true(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not run.settings.leaking]


def _together(runs: Sequence[Run]) -> Heads:
    """Return the heads of several runs with descriptive names."""
    parts, models = [], {}
    for run in runs:
        mask = "leaking mask" if run.settings.leaking else "true mask"
        name = f"{run.label}, {mask}"
        parts.append(run.heads.records.with_run(name))
        (models[name],) = run.heads.models.values()
    return replace(runs[0].heads, records=Records.joined(parts), models=models)


def _smooth(values: NDArray[Any], width: int = 20) -> Floats:
    if len(values) < width:
        return values
    return np.convolve(values, np.full(width, 1 / width), "valid")
