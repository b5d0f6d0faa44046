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
        epilog="example: normgrowth names model.safetensors --scope encoder",
    )
    add_source(parser)
    parser.add_argument("--json", action="store_true", help="print rows as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.report.terminal import print_names
    from normgrowth.weights.sources.series import open_source
    from normgrowth.weights.trace import Selection

    selection = Selection(arguments.scope, arguments.select, arguments.exclude)
    series = open_source(source_of(arguments), allow=arguments.allow, endpoint=arguments.endpoint)
    for note in series.notes:
        warnings.warn(note, SeriesWarning, stacklevel=2)
    checkpoint = series.entries[0].open()
    try:
        rows = [
            {
                "name": reading.name,
                "shape": list(checkpoint.tensors[reading.name].shape),
                "dtype": checkpoint.tensors[reading.name].dtype,
                "layer": reading.layer_name,
                "role": reading.role,
                "counted": reading.counted,
                "reason": reading.reason,
            }
            for reading in selection.readings(checkpoint).values()
        ]
    finally:
        checkpoint.close()
    if arguments.json:
        json.dump(rows, sys.stdout)
        print()
    else:
        print_names(rows)
    return 0
