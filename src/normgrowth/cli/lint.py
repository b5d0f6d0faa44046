"""normgrowth lint: integrity checks of a series of checkpoints."""

import argparse
import json
import sys
from dataclasses import asdict
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
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a fault")
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print findings as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.lint import lint
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.findings import print_findings

    with Progress() as progress:
        report = lint(
            source_of(arguments),
            include=arguments.include,
            select=arguments.select,
            exclude=arguments.exclude,
            endpoint=arguments.endpoint,
            workers=arguments.workers,
            progress=progress,
        )
    findings = [asdict(finding) for finding in report]
    if arguments.json:
        content = {"source": report.source, "steps": report.steps, "checked": report.checked}
        json.dump({**content, "findings": findings}, sys.stdout)
        print()
    else:
        print_findings(findings, source=report.source, steps=report.steps, checked=report.checked)
    return 1 if arguments.strict and any(f["severity"] == "fault" for f in findings) else 0
