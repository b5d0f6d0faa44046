"""normgrowth figures: the pictures of a trace."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normgrowth.records import Records

PUBLISHED = "published:t5"


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "figures",
        help="draw norm, direction, alignment and budget of a trace",
        description="Draw the figures of a trace: norm and direction by layer (the paper's Figure 1), alignment "
        "and step size (Figure 5), angles, the growth budget, and growth by role.",
        epilog="example: normgrowth figures traces/gpt -o figures --formats png,pdf",
    )
    parser.add_argument(
        "trace", metavar="DIR", help="a folder that `normgrowth trace -o` wrote, or published:t5"
    )
    parser.add_argument("-o", "--out", metavar="DIR", help="where to (default: DIR/figures)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace figures of another trace in the folder of -o"
    )
    parser.add_argument(
        "--fit",
        nargs="?",
        const="best",
        metavar="LAW",
        help="draw a growth law: sqrt, power, ... (default: the best)",
    )
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="DIR",
        help="another trace, or published:t5; its model in grey",
    )
    parser.add_argument("--formats", default="png,svg,pdf", metavar="LIST", help="default: png,svg,pdf")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.report.figures.trace import draw

    formats = tuple(arguments.formats.split(","))
    if unknown := set(formats) - {"png", "svg", "pdf"}:
        raise InputError(f"--formats {arguments.formats}: {sorted(unknown)[0]!r} is none of png, svg, pdf")
    records = _records(arguments.trace)
    if arguments.fit:
        records = _with_fit(records, arguments.fit)
    here = Path("figures") if arguments.trace == PUBLISHED else Path(arguments.trace) / "figures"
    folder = Path(arguments.out) if arguments.out else here
    try:
        beside = [_records(other) for other in arguments.over]
        # DIR/figures belongs to DIR, which holds one trace; any other place may hold the figures of another.
        overwrite = arguments.overwrite or not arguments.out
        paths = draw(records, folder, formats=formats, beside=beside, overwrite=overwrite)
        if records.made_by.get("command") == "saturation":
            from normgrowth.network.saturation import Saturation
            from normgrowth.report.figures.saturation import draw_saturation

            paths += draw_saturation(Saturation.from_records(records), folder, formats=formats)
        for path in paths:
            print(path)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
    return 0


def _records(source: str) -> "Records":
    from normgrowth.paper.published.figure1 import t5_records
    from normgrowth.records import Records

    return t5_records() if source == PUBLISHED else Records.read(source)


def _with_fit(records: "Records", law: str) -> "Records":
    """The records and, as the quantity `norm_fit` of the model, a law fitted to its norm."""
    from normgrowth.fit import fit
    from normgrowth.records import Block, Records

    steps, norms = records.series("norm")
    fits = fit(steps, norms, laws=None if law == "best" else [law], bootstrap=0)
    chosen = fits.best if law == "best" else fits[law]
    values = {"norm_fit": chosen.predict(steps)[:, None]}
    block = Block("model", ["model"], [None], [None], steps.tolist(), values)
    rows = Records.from_blocks(records.distinct("run")[0], [block], {})
    return Records.joined(
        [records, rows], {**records.made_by, "fit": f"{chosen.formula}, r² = {chosen.r2:.4f}"}
    )
