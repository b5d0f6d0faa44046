"""Losses, saturation and norms of the authors' language models, published with their code but not in a figure."""

import numpy as np
from numpy.typing import NDArray

from normgrowth.paper.published.tables import published


def lm_run(run: str, metric: str, data: str = "penn") -> NDArray[np.float64]:
    """One metric of one run: before training, and after each epoch."""
    table = published("lm_runs")
    rows = (table["data"] == data) & (table["run"] == run) & (table["metric"] == metric)
    return table["value"][rows]


def norms() -> dict[str, NDArray[np.float64]]:
    """The norms of all runs, by corpus and run."""
    return _of_runs("norm")


def levels() -> dict[str, NDArray[np.float64]]:
    """The saturation of all runs, by corpus and run."""
    return _of_runs("saturation")


def _of_runs(metric: str) -> dict[str, NDArray[np.float64]]:
    table = published("lm_runs")
    runs = dict.fromkeys(zip(table["data"].tolist(), table["run"].tolist(), strict=True))
    return {f"{data}, {run}": lm_run(run, metric, data) for data, run in runs}
