"""normgrowth names: how each tensor of a checkpoint is read."""

import argparse
import json
import sys
import warnings
from typing import Any

from normgrowth.cli.source import add_source, source_of
from normgrowth.errors import SeriesWarning


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "names",
        help="how each tensor is read: layer, role, counted or not",
        description="Show how each tensor of the first checkpoint of a source is read.",
        epilog="example: normgrowth names model.safetensors --include encoder",
    )
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="print rows as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.checkpoints.checkpoint import STORAGE
    from normgrowth.checkpoints.selection import Selection, stored_copies
    from normgrowth.checkpoints.series import open_source
    from normgrowth.report.terminal.console import print_names

    selection = Selection(arguments.include, arguments.select, arguments.exclude)
    series = open_source(source_of(arguments), endpoint=arguments.endpoint)
    checkpoint = series.entries[0].open()
    for note in (*series.notes, *(f"{checkpoint.label}: {note}" for note in checkpoint.notes)):
        warnings.warn(note, SeriesWarning, stacklevel=2)
    try:
        readings = selection.readings(checkpoint.tensors, checkpoint.aliases)
        if not checkpoint.is_remote:  # of which only the header is read
            copies = stored_copies(checkpoint, readings)
            readings = selection.readings(checkpoint.tensors, {**checkpoint.aliases, **copies})
        rows = [
            {
                "name": reading.name,
                "shape": list(checkpoint.tensors[reading.name].shape),
                "dtype": checkpoint.tensors[reading.name].dtype,
                "layer": reading.layer_name,
                "role": reading.role,
                "kind": reading.kind,
                "counted": reading.counted,
                "reason": reading.reason
                if not reading.counted or checkpoint.tensors[reading.name].dtype in STORAGE
                else "its dtype cannot be measured: --exclude it",
            }
            for reading in readings.values()
        ]
    finally:
        checkpoint.close()
    if arguments.json:
        json.dump(rows, sys.stdout)
        print()
    else:
        print_names(rows)
    return 0
