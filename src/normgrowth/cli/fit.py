"""normgrowth fit."""

import argparse

from normgrowth.cli.command import Command
from normgrowth.cli.options import LEVELS, Option


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="show every law for each of several series")


COMMAND = Command(
    verb="normgrowth.fit:fit",
    summary="fit growth laws to norms, with intervals and evidence",
    description="Fit growth laws to norms: a·√t + b and alternatives, with r², confidence intervals that account for\n"
    "autocorrelated residuals, and the weight of evidence for each law.",
    examples="""  normgrowth fit traces/gpt
  normgrowth fit traces/gpt --level layer --from-step 10000
  normgrowth fit norms.csv --laws sqrt,sqrt2,power
  normgrowth fit published:t5_norm --json

published:NAME is a series of the paper: t5_norm or t5_norm_by_layer.""",
    positional=("data",),
    hidden=("norms",),
    draws=True,
    own={
        "data": Option(
            "output folder of a trace, a CSV file with the columns step and norm, published:NAME, or several of these",
            "DATA",
            nargs="+",
        ),
        "laws": Option(
            "laws to fit: sqrt, sqrt2, power2, power, linear, root4, log, relax, constant [all]",
            "NAME,NAME",
        ),
        "seed": Option("seed of the bootstrap", "N"),
        "level": Option("fit the model, or each part, layer, role or tensor", choices=LEVELS),
    },
    add=_add,
    display=("full",),
)
