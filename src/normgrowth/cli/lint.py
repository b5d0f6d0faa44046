"""normgrowth lint: whether a series of checkpoints can be trusted."""

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

Every parameter is looked at unless --scope, --select or --exclude say otherwise.
Exit code 0: done, whatever was found; 1: with --strict, a fault was; 2: nothing could be read.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "lint",
        help="what is wrong with a series: copies, strangers, stale tensors, damaged files",
        description="Look for checkpoints that lie: identical ones, tensors that stood still, other runs and\n"
        "re-initialisations, steps out of order, missing, new, reshaped and renamed tensors,\n"
        "partial files, NaN, weights as freshly initialised, buffers that count as parameters.\n"
        "Remarks are what honest training does too, such as frozen layers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source(parser, scope="all")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a fault")
    add_workers(parser)
    parser.add_argument("--json", action="store_true", help="print findings as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.report.findings import print_findings
    from normgrowth.report.terminal import Progress
    from normgrowth.weights.lint import lint

    with Progress() as progress:
        report = lint(
            source_of(arguments),
            scope=arguments.scope,
            select=arguments.select,
            exclude=arguments.exclude,
            allow=arguments.allow,
            endpoint=arguments.endpoint,
            workers=arguments.workers,
            progress=progress,
        )
    findings = [asdict(finding) for finding in report]
    if arguments.json:
        json.dump({"source": report.source, "steps": report.steps, "findings": findings}, sys.stdout)
        print()
    else:
        print_findings(findings, source=report.source, steps=report.steps)
    return 1 if arguments.strict and any(f["severity"] == "fault" for f in findings) else 0
