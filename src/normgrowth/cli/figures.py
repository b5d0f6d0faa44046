"""normgrowth figures: the pictures of a trace."""

import argparse
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "figures",
        help="draw norm, direction, alignment and budget of a trace",
        description="Draw the figures of a trace: norm and direction by layer (the paper's Figure 1), alignment "
        "and step size (Figure 5), angles, the growth budget, and growth by role.",
        epilog="example: normgrowth figures traces/gpt -o figures --formats png,pdf",
    )
    parser.add_argument("trace", metavar="DIR", help="a folder that `normgrowth trace -o` wrote")
    parser.add_argument("-o", "--out", metavar="DIR", help="where to (default: DIR/figures)")
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="DIR",
        help="another trace, whose model is drawn in grey",
    )
    parser.add_argument("--formats", default="png,svg,pdf", metavar="LIST", help="default: png,svg,pdf")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.records import Records
    from normgrowth.report.figures import draw

    formats = tuple(arguments.formats.split(","))
    if unknown := set(formats) - {"png", "svg", "pdf"}:
        raise InputError(f"--formats {arguments.formats}: {sorted(unknown)[0]!r} is none of png, svg, pdf")
    folder = Path(arguments.out or Path(arguments.trace) / "figures")
    try:
        beside = [Records.read(other) for other in arguments.over]
        for path in draw(Records.read(arguments.trace), folder, formats=formats, beside=beside):
            print(path)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
    return 0
