"""normgrowth report."""

import argparse

from normgrowth.cli.command import Action


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="output folders of any commands, or published:t5"
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="HTML file [report.html in the first folder]")
    text = "replace a page that was made from other results"
    parser.add_argument("--overwrite", action="store_true", help=text)
    parser.add_argument("--title", default="", help="title of the page")
    parser.add_argument("--no-fit", dest="fit", action="store_false", help="do not fit growth laws")


def _report(arguments: argparse.Namespace) -> int:
    from normgrowth.report import report

    options = {"title": arguments.title, "fit": arguments.fit, "overwrite": arguments.overwrite}
    print(report(arguments.folders, arguments.out, **options).path)
    return 0


COMMAND = Action(
    summary="write one self-contained HTML report for any results",
    description="Write one self-contained HTML page for the results in the folders: norms and directions by layer\n"
    "with their growth laws, saturation, heads, scaling, sweeps, findings of lint. It works offline.",
    examples="""  normgrowth report traces/gpt
  normgrowth report traces/gpt traces/gpt-decayed -o both.html     (overlaid)
  normgrowth report runs/lab published:t5                          (every result in the folder)""",
    configure_options=_options,
    action=_report,
)
