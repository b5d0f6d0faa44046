"""normgrowth report: one self-contained HTML page on any results."""

import argparse
from typing import Any

EXAMPLES = """examples:
  normgrowth report traces/gpt
  normgrowth report traces/gpt traces/gpt-decayed -o both.html     (overlaid)
  normgrowth report runs/lab published:t5                          (every result in the folder)

The page is one file that needs no network. It shows every kind of result: norms and directions by layer with their
growth laws, saturation, heads, scaling, sweeps, what lint found.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "report",
        help="write one self-contained HTML page on any results: sentences, interactive charts, tables",
        description="Write one self-contained HTML page on all results in the folders.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="output folders of any command, or published:t5"
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="the file (default: report.html in the first folder)"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a page that was made from other folders"
    )
    parser.add_argument("--title", default="", help="title of the page")
    parser.add_argument("--no-fit", action="store_true", help="do not fit growth laws")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.report import report

    page = report(
        arguments.folders,
        arguments.out,
        title=arguments.title,
        fit=not arguments.no_fit,
        overwrite=arguments.overwrite,
    )
    print(page.path)
    return 0
