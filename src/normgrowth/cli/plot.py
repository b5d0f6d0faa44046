"""normgrowth plot."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.cli.command import Action

if TYPE_CHECKING:
    from normgrowth.report.figures.trace import FittedLaw
    from normgrowth.results import Result


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", metavar="DIR", help="output folder of any command, or published:t5")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder for the figures [DIR/figures]")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace figures of another result in that folder"
    )
    parser.add_argument(
        "--fit",
        nargs="?",
        const="best",
        metavar="LAW",
        help="draw a growth law over the norm: sqrt, power, ... [best]",
    )
    parser.add_argument(
        "--overlay",
        action="append",
        default=[],
        metavar="DIR",
        help="also draw another trace, or published:t5, in gray",
    )
    parser.add_argument("--formats", default="png,svg,pdf", metavar="LIST", help="file formats [png,svg,pdf]")


def _plot(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.report.renderers import draw

    result = _result(arguments.result)
    options: dict[str, Any] = {"formats": tuple(arguments.formats.split(","))}
    if result.kind == "trace":
        # DIR/figures belongs to the result in DIR; any other folder may contain figures of another result.
        options["overwrite"] = arguments.overwrite or not arguments.out
        options["overlay"] = [_result(other) for other in arguments.overlay]
        options["fitted"] = _fitted(result, arguments.fit) if arguments.fit else None
    elif arguments.overlay or arguments.fit:
        raise InputError(
            f"--overlay and --fit are for traces; {arguments.result} has a result of kind {result.kind!r}"
        )
    named = arguments.result.startswith("published:")
    folder = Path(arguments.out or ("figures" if named else Path(arguments.result) / "figures"))
    try:
        paths = draw(result, folder, **options)
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
    if not paths:
        raise InputError(f"{arguments.result}: the result has no data for its figures")
    print(*paths, sep="\n")
    return 0


def _result(source: str) -> "Result":
    from normgrowth import results
    from normgrowth.paper import published
    from normgrowth.trace.result import Trace

    if source.startswith("published:"):
        return published.load_published(source.removeprefix("published:"))
    result = results.load(source, levels=["model", "part", "layer", "layer_matrices", "role"])
    holds_norms = result.kind in ("run", "trace") and len(
        result.records.where(level="model", quantity="norm")
    )
    return Trace.from_stored(result.stored) if holds_norms and not isinstance(result, Trace) else result


def _fitted(trace: "Result", law: str) -> "FittedLaw":
    """A growth law fitted to the norm of the model."""
    from normgrowth.fit import fit
    from normgrowth.report.figures.trace import FittedLaw

    steps, norms = trace.records.series("norm")
    fits = fit(steps, norms, laws=None if law == "best" else [law], bootstrap=0)
    best = fits.best if law == "best" else fits[law]
    return FittedLaw(f"{best.formula}, r² = {best.r2:.4f}", steps, best.predict(steps))


COMMAND = Action(
    summary="save the figures of a result",
    description="Save all figures of a result. For a trace: norm and direction by layer (the paper's Figure 1),\n"
    "alignment and step size (Figure 5), angles, the growth budget, and growth by role.",
    examples="""  normgrowth plot traces/gpt
  normgrowth plot traces/gpt --overlay traces/sgd --fit sqrt -o figures --formats png,pdf""",
    configure_options=_options,
    action=_plot,
)
