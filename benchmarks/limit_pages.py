"""Make the pictures and tables of docs/saturated_network.md from limit.json."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pages import DOCS, PICTURES, fill

from normgrowth.report.figures.style import style

COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#1a1a1a", "#8c8c8c")


def write(results: dict[str, Any]) -> None:
    PICTURES.mkdir(exist_ok=True)
    curves(results["models"])
    head(results["head"])
    fill(DOCS / "saturated_network.md", {"differences": differences(results)})


def cell(values: Any, layer: int) -> str:
    """Format a cosine; "-" if the network returned NaN."""
    if isinstance(values, str) or values[layer] is None:
        return "-"
    value = values[layer]
    return "1 − " + f"{1 - value:.0e}".replace("e-0", "e-") if 0.999 < value < 1 - 1e-12 else f"{value:.3f}"


def differences(results: dict[str, Any]) -> str:
    lines = [
        "| model | degree | ties | c = 100 | c = 1000 | c = 10,000 "
        "| c = 1000, float32 | limit, float32 | limit, bfloat16 | bfloat16, same weights |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["models"]:
        last = row["layers"] - 1
        cells = [cell(row["float64"][c], last) for c in ("100", "1000", "10000")]
        cells += [cell(row["float32"]["1000"], last)]
        cells += [
            cell(row[f"limit {dtype}"], last) for dtype in ("float32", "bfloat16", "bfloat16, same weights")
        ]
        lines.append(f"| {row['model']} | {row['degree']} | {row['tied rows']:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def curves(models: list[dict[str, Any]]) -> None:
    """Draw the distance of the scaled network from the limit against c."""
    with style():
        figure = Figure(figsize=(7.2, 3.1))
        for ax, place, title in zip(
            figure.subplots(1, 2, sharey=True),
            (1, -1),
            ("after the first layer", "after the last"),
            strict=True,
        ):
            for row, color in zip(models, COLORS, strict=True):
                points = [(int(c), v[place]) for c, v in row["float64"].items() if not isinstance(v, str)]
                x, y = np.array([(c, v) for c, v in points if v is not None]).T
                ax.plot(x, np.maximum(1 - y, 1e-12), color=color, label=row["model"], linewidth=1.3)
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xlabel("c")
            ax.set_title(title)
            ax.axvline(1000, color="#8c8c8c", linewidth=0.6, linestyle=(0, (4, 2)))
        figure.axes[0].set_ylabel("1 − cosine to the exact limit")
        figure.axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.savefig(PICTURES / "limit_curves.svg", metadata={"Date": None})


def head(matrices: dict[str, Any]) -> None:
    """Draw one attention head, from soft to hard."""
    with style():
        figure = Figure(figsize=(7.2, 1.9))
        axes = figure.subplots(1, len(matrices), sharey=True)
        for ax, (title, matrix) in zip(axes, matrices.items(), strict=True):
            ax.imshow(matrix, cmap="viridis", vmin=0, vmax=1)
            ax.set_title(title)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_xlabel("key")
        axes[0].set_ylabel("query")
        figure.savefig(PICTURES / "limit_head.svg", metadata={"Date": None})
