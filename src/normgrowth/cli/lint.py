"""normgrowth lint: integrity checks of a series of checkpoints."""

import argparse
from typing import Any

from normgrowth.cli.source import add_source, add_workers, source_of

EXAMPLES = """examples:
  normgrowth lint runs/gpt/checkpoints
  normgrowth lint 'hf://EleutherAI/pythia-70m@step*' --strict
  normgrowth lint runs/gpt/checkpoints --exclude 'rotary' --json

All parameters are checked unless --include, --select or --exclude is given.
Exit codes: 0 done; 1 faults found and --strict given; 2 nothing could be read.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "lint",
        help="check a series for copies, other runs, stale tensors, swapped steps, damaged files",
        description="Check the integrity of a series of checkpoints: duplicates, stale tensors, checkpoints of\n"
        "another run, re-initialized weights, steps out of order, two series in one folder, data files,\n"
        "missing, new, reshaped and renamed tensors, damaged files, NaN, buffers counted as parameters.\n"
        "Remarks are what honest training does too, such as frozen layers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source(parser, include="all")
    parser.add_argument("-o", "--out", metavar="DIR", help="output folder for the findings")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another result in the output folder"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a fault")
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print findings as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.cli.output import show_result
    from normgrowth.lint import lint
    from normgrowth.report.terminal.console import Progress

    with Progress() as progress:
        findings = lint(
            source_of(arguments),
            arguments.out,
            overwrite=arguments.overwrite,
            include=arguments.include,
            select=arguments.select,
            exclude=arguments.exclude,
            endpoint=arguments.endpoint,
            workers=arguments.workers,
            progress=progress,
        )
    show_result(arguments, findings)
    return 1 if arguments.strict and findings.faults else 0
