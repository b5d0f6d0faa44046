"""normgrowth lint."""

import argparse

from normgrowth.cli.command import Command


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there is a fault")


COMMAND = Command(
    verb="normgrowth.lint:lint",
    summary="check a series for duplicates, stale tensors, swapped steps, damaged files",
    description="Check the integrity of a series of checkpoints: duplicates, stale tensors, checkpoints of another\n"
    "run, re-initialized weights, steps out of order, two series in one folder, data files, missing,\n"
    "new, reshaped and renamed tensors, damaged files, NaN, buffers counted as parameters.\n"
    "Faults are errors in the data; remarks, such as frozen layers, also occur in correct training.\n"
    "All parameters are checked unless --include, --select or --exclude is given.",
    examples="""  normgrowth lint runs/gpt/checkpoints
  normgrowth lint 'hf://EleutherAI/pythia-70m@step*' --strict
  normgrowth lint runs/gpt/checkpoints --exclude rotary --json

Exit codes: 0 done; 1 faults found and --strict given; 2 nothing could be read.""",
    counts_bytes=True,
    add=_add,
    code=lambda findings, arguments: int(arguments.strict and bool(findings.faults)),
)
