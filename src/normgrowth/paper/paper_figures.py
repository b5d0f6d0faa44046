"""The paper's figures, drawn of what was measured here, with the published numbers beside where there are any."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.network.scaling import Scaling
from normgrowth.paper.published.figure1 import t5_trace
from normgrowth.paper.published.figure2 import saturation_records
from normgrowth.paper.published.figure3 import heads_records
from normgrowth.paper.published.figure4 import figure4
from normgrowth.records import Records
from normgrowth.report.figures.heads import figure_positions
from normgrowth.report.figures.scaling import curves as scaling_curves
from normgrowth.report.figures.style import FORMATS, save
from normgrowth.report.figures.sweep import figure_phase
from normgrowth.report.figures.trace import figure_alignment_step, figure_norm_direction
from normgrowth.report.terminal.saturation import figure_saturation
from normgrowth.trace.result import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "fig1": "Norm and direction of T5, as published, and of a model trained here",
    "fig2": "Saturation of trained and random networks",
    "fig3": "Positions that saturated heads attend to, with a true and with a leaking mask",
    "fig4": "Cosine to the saturated network as weights grow",
    "fig5": "Alignment and step size of T5, derived from Figure 1, and of a model trained here",
    "fig6": "Where the norm grows, over learning rate and weight decay",
}


def figures(evidence: Mapping[str, Records]) -> dict[str, tuple[str, "Figure"]]:
    """Name -> title and figure, of what the evidence has. T5's own are drawn whatever was run."""
    own = [_traced(evidence["language_models"])] if "language_models" in evidence else []
    drawn: dict[str, Any] = {
        "fig1": figure_norm_direction(t5_trace(), overlay=own),
        "fig5": figure_alignment_step(t5_trace(), overlay=own),
    }
    if "pretrained" in evidence:
        drawn["fig2"] = figure_saturation(evidence["pretrained"], saturation_records())
    if "language_models" in evidence:
        drawn["fig3"] = figure_positions(_heads(evidence["language_models"]), heads_records(83))
    if "scaling" in evidence:
        drawn["fig4"] = scaling_curves(Scaling.from_records(evidence["scaling"]), figure4())
    if "decay" in evidence:
        drawn["fig6"] = figure_phase(evidence["decay"])
    return {name: (TITLES[name], drawn[name]) for name in sorted(drawn) if drawn[name] is not None}


def draw_figures(
    evidence: Mapping[str, Records],
    folder: Path | str,
    *,
    only: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """only: names of figures and whatever else was asked for; all figures without."""
    paths = []
    for name, one in figures(evidence).items():
        if not only or name in only:
            paths += save({name: one}, folder, formats, one[0])
    return paths


def _traced(lab: Records) -> Trace:
    """The checkpoints of the first model: the paper's pre-norm."""
    name = next(iter(lab.made_by["models"]))
    return Trace(records=lab.where(run=f"{name}, checkpoints"), source=name)


def _heads(lab: Records) -> Records:
    """Of the models trained with AdamW."""
    parts, facts = [], {}
    for name, known in lab.made_by["models"].items():
        if known["optimizer"] != "adamw":
            continue
        parts.append(lab.where(run=f"{name}, heads"))
        facts[f"{name}, heads"] = lab.made_by["heads"][name]
    return Records.joined(parts, {"command": "heads", "runs": facts, "notes": [], "problems": []})
