"""normgrowth parameters: how each tensor of a checkpoint is read."""

import argparse
from typing import Any

from normgrowth.cli.source import add_source, source_of

EXAMPLES = """examples:
  normgrowth parameters model.safetensors
  normgrowth parameters runs/gpt/checkpoints --include encoder --json
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "parameters",
        help="how each tensor is read: layer, role, counted or not",
        description="Show how each tensor of the first checkpoint of a source is read.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="print the parameters as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.checkpoints.parameter_list import parameters
    from normgrowth.cli.output import show_result

    listed = parameters(
        source_of(arguments),
        include=arguments.include,
        select=arguments.select,
        exclude=arguments.exclude,
        endpoint=arguments.endpoint,
    )
    show_result(arguments, listed, remarks=False)  # they went to stderr as warnings
    return 0
