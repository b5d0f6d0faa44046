"""Make the pictures and tables of docs/decay.md from the records in docs/records/decay."""

import json
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pages import DOCS, fill, picture, table

from normgrowth.lab.cells.edge_search import Cell, changes, wanted
from normgrowth.lab.sweep_result import Sweep
from normgrowth.report.sentences.sweep import edges_in_words
from normgrowth.report.sweep_grid import SweepGrid
from normgrowth.results import load_all

Floats = NDArray[np.float64]
NAMES = {"adamw": "AdamW", "sgd": "SGD, clipped"}
PAPERS = (1e-3, 1e-2)  # the paper's bounds of the threshold of λ
LEARNED = 0.05  # nats above the loss of the best cell; cells within this count as usable


def write(folder: Path) -> None:
    found = {path.name: SweepGrid(found) for path, found in load_all(folder) if isinstance(found, Sweep)}
    grids = {name: found[name] for name in NAMES if name in found}
    sections: dict[str, str] = {
        "answers": table(ANSWERS, [[NAMES[name], *answers(grid)] for name, grid in grids.items()]),
        "refine": table(REFINED, [[NAMES[name], *refined(grid)] for name, grid in grids.items()]),
    }
    for name, grid in grids.items():
        sections[f"edge of {name}"] = edge_table(grid)
        picture(grid.result.plot.phase(), f"decay_{name}_phase")
        picture(grid.result.plot.edge(), f"decay_{name}_edge")
    if "adamw-default" in found:
        sections["default"] = default_table(found["adamw-default"])
    if (facts := folder / "paper.json").exists():
        sections["paper"] = paper_sized(json.loads(facts.read_text()))
    fill(DOCS / "decay.md", sections)


def inside(grid: SweepGrid) -> NDArray[np.bool_]:
    edge = grid.column("edge")
    return np.isfinite(edge) & (edge > 0)


def grows(grid: SweepGrid) -> NDArray[np.bool_]:
    return (grid.log_factor > 0) | grid.diverged


ANSWERS = (
    "optimizer",
    "cells, diverged",
    "the norm grows in",
    "growth ends at λ",
    "exponent p in λ ∝ ηᵖ",
    "λ/λ*, median",
    "parts of λ/λ* from alignment and steps, medians",
    "cells with the best loss that grow",
)


def answers(grid: SweepGrid) -> list[str]:
    edge, rates, there = grid.column("edge"), np.array(grid.x.values, float), inside(grid)
    whole = edge / grid.column("edge_predicted")
    ratio = whole[there]
    shares = [grid.column(f"edge_{term}") * whole for term in ("alignment", "steps")]
    slope = np.polyfit(np.log(rates[there]), np.log(edge[there]), 1)[0]
    losses, many = grid.cell("dev_loss"), grid.shape[0] * grid.shape[1]
    best = losses <= np.nanmin(losses) + LEARNED
    return [
        f"{int(np.isfinite(grid.cell('steps')).sum())}, {int(grid.diverged.sum())}",
        f"{grows(grid).sum() / many:.0%}",
        f"{edge[there].min():.2g} to {edge[there].max():.2g}",
        f"{slope:.2f}",
        f"{np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})",
        " and ".join(f"{np.median(share[there]):+.2f}" for share in shares).replace("-", "−"),
        f"{int((best & grows(grid)).sum())} of {int(best.sum())} (loss {np.nanmin(losses):.2f})",
    ]


def edge_table(grid: SweepGrid) -> str:
    """λ/λ* is the sum of alignment and steps, each divided by the decay at λ*: 0.95 and 0.05 for random gradients."""
    edge, predicted = grid.column("edge"), grid.column("edge_predicted")
    losses, rows = grid.cell("dev_loss"), []
    for i, rate in enumerate(grid.x.values):
        ratio = edge[i] / predicted[i] if isfinite(edge[i]) and edge[i] > 0 else np.nan
        shares = [grid.column(f"edge_{term}")[i] * ratio for term in ("alignment", "steps")]
        place = "below all" if edge[i] == 0 else "above all" if edge[i] == np.inf else f"{edge[i]:.2g}"
        loss = np.nanmin(losses[i]) if np.isfinite(losses[i]).any() else np.nan
        numbers = [f"{value:.2f}" if isfinite(value) else "" for value in (ratio, *shares, loss)]
        rows.append([f"{rate:.2g}", place, f"{predicted[i]:.2g}", *numbers, edges_in_words(grid)[i]])
    titles = (
        "η",
        "growth ends at λ",
        "λ*",
        "λ/λ*",
        "part from alignment",
        "part from steps",
        "best dev loss",
        "edges in the grid",
    )
    return table(titles, rows).replace("-0.", "−0.")


def default_table(grid: SweepGrid) -> str:
    rows = []
    for i, rate in enumerate(grid.x.values):
        factor = 10 ** grid.log_factor[i, 0]
        rows.append(
            [f"{rate:.2g}", "diverged" if grid.diverged[i, 0] else f"{factor:.3f}"]
            + [f"{grid.cell(name)[i, 0]:.2f}" for name in ("dev_loss", "loss_start")]
        )
    grew = int(grows(grid)[:, 0].sum())
    said = f"At λ = 0.01 the norm grew at {grew} of {grid.shape[0]} learning rates."
    return f"{said}\n\n{table(('η', 'norm, end over start', 'dev loss', 'loss of the first steps'), rows)}"


REFINED = (
    "optimizer",
    "cells of the grid",
    "cells that `--refine` asks for",
    "columns with the same two rows",
)


def refined(grid: SweepGrid) -> list[str]:
    """Run the search of `--refine` with cells of the full grid."""
    signs = grows(grid)
    known: dict[Cell, bool] = {}
    while cells := wanted(known, *grid.shape):
        known |= {cell: bool(signs[cell]) for cell in cells}
    full = {(i, j): bool(signs[i, j]) for i in range(grid.shape[0]) for j in range(grid.shape[1])}
    pairs = zip(changes(known, *grid.shape), changes(full, *grid.shape), strict=True)
    same = sum((a.below, a.above) == (b.below, b.above) for a, b in pairs)
    return [f"{signs.size}", f"{len(known)}", f"{same} of {grid.shape[0]}"]


def paper_sized(facts: dict[str, float]) -> str:
    low, high = (bound / facts["edge_over_lr"] for bound in PAPERS)
    return (
        f"The paper's own model starts at a norm of {facts['norm_start']:.0f} with {facts['numel'] / 1e6:.1f} million "
        f"parameters in its blocks, so that λ* = {facts['edge_over_lr']:.0f}η: {facts['edge_over_lr'] * 1e-3:.2g} at "
        f"PyTorch's η = 0.001, and between 0.001 and 0.01, where the paper sees the threshold, for η from {low:.2g} to "
        f"{high:.2g}."
    )
