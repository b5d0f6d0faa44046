"""normgrowth compare: two traces side by side."""

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="two traces side by side",
        description="Set two traces side by side: norm, growth, direction and budget of each layer.",
        epilog="example: normgrowth compare traces/adamw traces/sgd",
    )
    parser.add_argument("a", metavar="DIR", help="a folder that `normgrowth trace -o` wrote")
    parser.add_argument("b", metavar="DIR", help="another")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.cli.output import show_result
    from normgrowth.compare import compare

    show_result(arguments, compare(arguments.a, arguments.b))
    return 0
