"""normgrowth plot."""

import argparse
from pathlib import Path

from normgrowth.cli.command import Action


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", metavar="DIR", help="output folder of any command, or published:t5")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder for the figures (default: DIR/figures)")
    parser.add_argument("--overwrite", action="store_true", help="replace figures of another result there")
    parser.add_argument(
        "--fit", nargs="?", const="best", metavar="LAW", help="draw a growth law over the norm: sqrt, power, ... [best]"
    )
    parser.add_argument(
        "--overlay", action="append", default=[], metavar="DIR", help="another trace, or published:t5, in grey"
    )
    parser.add_argument("--formats", default="png,svg,pdf", metavar="LIST", help="file formats [png,svg,pdf]")


def _plot(arguments: argparse.Namespace) -> int:
    from normgrowth.paper.published import load
    from normgrowth.report.dispatch import save_figures

    result = load(arguments.result)
    options = {}
    if arguments.overlay:
        options["overlay"] = [load(other) for other in arguments.overlay]
    if arguments.fit:
        options["law"] = arguments.fit
    published = arguments.result.startswith("published:")
    folder = Path(arguments.out or ("figures" if published else Path(arguments.result) / "figures"))
    # DIR/figures belongs to the result in DIR; any other folder may hold the figures of another.
    overwrite = arguments.overwrite or not arguments.out
    formats = tuple(arguments.formats.split(","))
    for path in save_figures(result, folder, formats=formats, overwrite=overwrite, **options):
        print(path)
    return 0


COMMAND = Action(
    summary="save the figures of a result",
    description="Save all figures of a result: of a trace norm and direction by layer (the paper's Figure 1),\n"
    "alignment and step size (Figure 5), angles, the growth budget, and growth by role.",
    examples="""  normgrowth plot traces/gpt
  normgrowth plot traces/gpt --overlay traces/sgd --fit sqrt -o figures --formats png,pdf""",
    configure_options=_options,
    action=_plot,
)
