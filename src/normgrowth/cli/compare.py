"""normgrowth compare: two traces side by side."""

import argparse
import json
import sys
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "compare",
        help="two traces side by side",
        description="Set two traces side by side: norm, growth, direction and budget of each layer.",
        epilog="example: normgrowth compare traces/adamw traces/sgd",
    )
    parser.add_argument("one", metavar="DIR", help="a folder that `normgrowth trace -o` wrote")
    parser.add_argument("other", metavar="DIR", help="another")
    parser.add_argument("--json", action="store_true", help="print rows as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.records import Records
    from normgrowth.report.terminal.console import compare, print_compare

    one, other = Records.read(arguments.one), Records.read(arguments.other)
    if arguments.json:
        json.dump(compare(one, other), sys.stdout)
        print()
    else:
        print_compare(one, other)
    return 0
