"""The paper's figures: measurements made here, with the published numbers if there are any."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from normgrowth.lab.sweep_result import Sweep
from normgrowth.paper.evidence import Evidence, TrainedModel
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.paper.published.figure2 import figure2
from normgrowth.paper.published.figure3 import figure3
from normgrowth.paper.published.figure4 import figure4
from normgrowth.paper.stages.pretrained_models import AS_PUBLISHED
from normgrowth.paper.t5_series import TracedT5
from normgrowth.records import Records
from normgrowth.report.figures.growth_rows import GrowthRow, figure_growth
from normgrowth.report.figures.heads import positions as head_positions
from normgrowth.report.figures.saturation import levels as saturation_levels
from normgrowth.report.figures.scaling import curves as scaling_curves
from normgrowth.report.figures.style import FORMATS, save
from normgrowth.report.figures.sweep import phase
from normgrowth.report.figures.trace import figure_alignment_step, figure_norm_direction
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = {"constant": "constant rate", "inverse_sqrt": "rate as 1/√t"}
KINDS = {
    "paper_pre_norm": "the paper's pre-norm",
    "usual_pre_norm": "usual pre-norm",
    "post_norm": "post-norm",
}
PENN_WINDOW = 83  # tokens, as in Figure 3


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper. needs: required stages. overlay: stages whose results are drawn next to the published T5,
    but not next to a traced one.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    draw: "Callable[[Evidence], Figure | None]"
    overlay: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """The name in titles: "2", or "2, as published"."""
        return self.name.removeprefix("fig").replace("-", ", ", 1).replace("-", " ")

    def stages(self, traced_t5: bool = False) -> tuple[str, ...]:
        """The stages that the figure shows."""
        return self.needs if traced_t5 else (*self.needs, *self.overlay)


def _own_traces(evidence: Evidence) -> list[Trace]:
    """The trace of T5 if there is one, else those of the paper's pre-norm, one per learning rate schedule."""
    if isinstance(evidence.t5, TracedT5):
        return [evidence.t5.trace]
    if not evidence.has("language_models"):
        return []
    return [
        replace(
            model.trace,
            records=model.trace.records.with_run(f"here: matrices, {RATES.get(name, name)}"),
        )
        for name, model in _one_network(evidence).items()
    ]


def _one_network(evidence: Evidence) -> dict[str, TrainedModel]:
    """The models that differ from the first one only in their learning rate schedule, by schedule."""
    first = next(iter(evidence.language_models))
    same = {
        "kind": first.kind,
        "optimizer": first.optimizer,
        "corpus": first.corpus,
        "leaking": first.leaking,
    }
    return {model.schedule: model for model in evidence.language_models.where(**same, seed=first.seed)}


def _growth(evidence: Evidence) -> "Figure | None":
    """Figure 1: a traced T5 over the published one, else the published one and models trained here."""
    if isinstance(evidence.t5, TracedT5) or not evidence.has("language_models"):
        return figure_norm_direction(t5_trace(), overlay=_own_traces(evidence))
    t5 = t5_trace()
    rows = [
        GrowthRow(
            f"trained here: {KINDS.get(one.kind, one.kind)}, {RATES.get(one.schedule, one.schedule)}",
            one.trace,
            one.measured,
        )
        for one in _one_network(evidence).values()
    ]
    return figure_growth(t5, title=f"{t5.run}; layers of the encoder", others=rows)


def _heads(evidence: Evidence) -> "Figure | None":
    models = evidence.language_models.where(optimizer="adamw")
    own = replace(
        models[0].heads,
        records=Records.joined([model.heads.records for model in models]),
        models={run: known for model in models for run, known in model.heads.models.items()},
    )
    return head_positions(own, published=figure3(PENN_WINDOW))


def _saturation(evidence: Evidence, *, as_published: bool) -> "Figure | None":
    result = evidence.saturation
    runs = [run for run in result.models if run.endswith(AS_PUBLISHED) == as_published]
    if not runs:
        return None
    records = Records.joined([result.records.where(run=run) for run in runs])
    own = replace(result, records=records, models={run: result.models[run] for run in runs})
    return saturation_levels(own, published=figure2())


FIGURES: dict[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        PaperFigure(
            "fig1",
            "Norm and direction of T5, as published, and of models trained here with their saturation",
            (),
            _growth,
            overlay=("language_models",),
        ),
        PaperFigure(
            "fig2",
            "Saturation of trained and random networks",
            ("pretrained",),
            lambda evidence: _saturation(evidence, as_published=False),
        ),
        PaperFigure(
            "fig2-as-published",
            "Saturation as the authors' script measures it: stack, layers and mode",
            ("pretrained",),
            lambda evidence: _saturation(evidence, as_published=True),
        ),
        PaperFigure(
            "fig3",
            "Positions that saturated heads attend to, with a true and with a leaking mask",
            ("language_models",),
            _heads,
        ),
        PaperFigure(
            "fig4",
            "Cosine to the saturated network as weights grow",
            ("scaling",),
            lambda evidence: scaling_curves(evidence.scaling, published=figure4()),
        ),
        PaperFigure(
            "fig5",
            "Alignment and step size of T5, derived from Figure 1, and of models trained here",
            (),
            lambda evidence: figure_alignment_step(t5_trace(), overlay=_own_traces(evidence)),
            overlay=("language_models",),
        ),
        PaperFigure(
            "fig6",
            "Where the norm grows, over learning rate and weight decay",
            ("decay",),
            lambda evidence: phase(evidence.of_stage("decay", Sweep)),
        ),
    )
}


def figures(evidence: Evidence, only: Sequence[str] = ()) -> "dict[str, Figure]":
    """The figures that can be drawn from the evidence, by name. only: names to select from (default: all)."""
    wanted = [one for one in FIGURES.values() if (not only or one.name in only) and evidence.has(*one.needs)]
    drawn = {one.name: one.draw(evidence) for one in wanted}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw_figures(
    evidence: Evidence, folder: Path | str, *, only: Sequence[str] = (), formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write the figures and return the paths of the files."""
    paths = []
    for name, figure in figures(evidence, only).items():
        title = FIGURES[name].title
        paths += save({name: (title, figure)}, folder, formats, title)
    return paths
