"""normgrowth sweep."""

import argparse
from functools import partial
from typing import Any

from normgrowth.cli.command import Command
from normgrowth.cli.options import Option, positive
from normgrowth.cli.training_options import add_settings, settings_of


def _given(given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    from normgrowth.lab.cells.axis import Axis

    axes = {name: Axis.parse(given[name], f"--{name}") for name in ("x", "y") if given[name]}
    return {**given, **axes, "settings": settings_of(arguments)}


VALUES = "FROM:TO:COUNT on a logarithmic scale, or a list V,V,V"
COMMAND = Command(
    verb="normgrowth.sweep:sweep",
    summary="train over a grid of two settings, and find where growth of the norm ends",
    description="Train a small language model for each cell of a grid of two settings: learning rate × weight decay\n"
    "by default. Show where the norm grows, by how much through steps, alignment and weight decay, and\n"
    "where growth ends (the paper's Figure 6).",
    examples="""  normgrowth sweep pydoc -o sweeps/first --x lr=1e-4:1e-1:4 --y weight_decay=1e-3:1:4  (minutes)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/adamw --refine        (only the boundary)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/adamw                 (the other cells, too)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/sgd --optimizer sgd --x lr=1e-3:10:20
  normgrowth sweep dyck2 -o sweeps/kind --x kind=post_norm,usual_pre_norm --y weight_decay=1e-3:1:9
  normgrowth sweep wikitext-2 --data /corpora -o sweeps/paper --preset paper --epochs 1 \\
      --engine ray --ray-address auto

Run the same command again to resume. A finer grid reuses the cells of a coarser one.""",
    positional=(),
    hidden=("settings", "corpus"),
    own={
        "overwrite": Option("replace the result of a sweep with other settings; trained cells are kept"),
        "x": Option(f"{VALUES} [lr=1e-5:1e-1:20]", "SETTING=VALUES"),
        "y": Option(f"{VALUES} [weight_decay=1e-5:1e-1:20]", "SETTING=VALUES"),
        "refine": Option("train only cells near the edge of growth along y"),
        "time_limit": Option("stop the training of a cell after this time", "SECONDS"),
        "stack_size": Option("number of cells to train in one batch of models [the fastest]", "N", positive),
    },
    add=partial(add_settings, preset="tiny"),
    adjust=_given,
    draws=True,
    processes=True,
    resumes=True,
    code=lambda result, _: 2 if result.problems else 0,
)
