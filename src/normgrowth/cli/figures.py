"""normgrowth figures: the pictures of a trace."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from normgrowth.report.figures.trace import FittedLaw
    from normgrowth.trace.result import Trace

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
    from normgrowth.records import Records
    from normgrowth.report.figures.trace import draw
    from normgrowth.trace.result import Trace

    formats = tuple(arguments.formats.split(","))
    if unknown := set(formats) - {"png", "svg", "pdf"}:
        raise InputError(f"--formats {arguments.formats}: {sorted(unknown)[0]!r} is none of png, svg, pdf")
    records = Records.read(arguments.trace) if arguments.trace != PUBLISHED else None
    trace = _trace(arguments.trace) if records is None else Trace.from_records(records)
    fitted = _fitted(trace, arguments.fit) if arguments.fit else None
    here = Path("figures") if arguments.trace == PUBLISHED else Path(arguments.trace) / "figures"
    folder = Path(arguments.out) if arguments.out else here
    try:
        overlay = [_trace(other) for other in arguments.over]
        # DIR/figures belongs to DIR, which holds one trace; any other place may hold the figures of another.
        overwrite = arguments.overwrite or not arguments.out
        paths = draw(trace, folder, formats=formats, overlay=overlay, fitted=fitted, overwrite=overwrite)
        if records is not None and records.made_by.get("command") == "saturation":
            from normgrowth.network.saturation import Saturation
            from normgrowth.report.figures.saturation import draw_saturation

            paths += draw_saturation(Saturation.from_records(records), folder, formats=formats)
        for path in paths:
            print(path)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
    return 0


def _trace(source: str) -> "Trace":
    from normgrowth.paper.published import load
    from normgrowth.records import Records
    from normgrowth.trace.result import Trace

    if source == PUBLISHED:
        return cast(Trace, load(PUBLISHED.removeprefix("published:")))
    return Trace.from_records(Records.read(source))


def _fitted(trace: "Trace", law: str) -> "FittedLaw":
    """A law fitted to the norm of the model."""
    from normgrowth.fit import fit
    from normgrowth.report.figures.trace import FittedLaw

    steps, norms = trace.records.series("norm")
    fits = fit(steps, norms, laws=None if law == "best" else [law], bootstrap=0)
    chosen = fits.best if law == "best" else fits[law]
    return FittedLaw(f"{chosen.formula}, r² = {chosen.r2:.4f}", steps, chosen.predict(steps))
