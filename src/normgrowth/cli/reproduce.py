"""normgrowth reproduce: every figure and claim of the paper, computed here, with a verdict."""

import argparse
import sys
from pathlib import Path
from typing import Any

from normgrowth.cli.source import add_engine

EXAMPLES = """examples:
  normgrowth reproduce                                    (what is embedded, minutes on two cores)
  normgrowth reproduce --only fig2,heads-bimodal
  normgrowth reproduce --scale paper --data corpora --engine ray --address auto

A second call runs only stages whose version or settings changed. With --scale paper the command first prints how long
each stage takes; --list prints that and stops.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        help="the paper's figures and claims, computed here, with a verdict for each",
        description="Compute what the paper shows, beside what was published, and judge each of its claims.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--out", default="reproduction", metavar="DIR", help="folder (%(default)s)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace stages that were run with another scale or corpus"
    )
    parser.add_argument(
        "--scale",
        choices=("demo", "paper"),
        default="demo",
        help="how large (%(default)s): what is embedded, or the paper's sizes",
    )
    parser.add_argument(
        "--only", default="", metavar="NAME,NAME", help="figures (fig2), table1 or claims by id"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder that holds penn or wikitext-2, or both"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the stages and how long they take, and stop"
    )
    add_engine(parser, "processes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.cli.output import show_result
    from normgrowth.engine.select import chosen
    from normgrowth.paper.reproduce import STAGES, reproduce, select
    from normgrowth.report.terminal.console import Progress

    only = [name for name in arguments.only.split(",") if name]
    needed = select(only)[1]
    if arguments.list or arguments.scale == "paper":
        for stage in (stage for stage in STAGES.values() if stage.name in needed):
            print(f"{stage.name}: {stage.title}; takes {stage.takes[arguments.scale]}", file=sys.stderr)
        if arguments.list:
            return 0
    with (
        Progress(of_bytes=False) as progress,
        chosen(arguments.engine, arguments.address, arguments.workers, processes=True) as engine,
    ):
        result = reproduce(
            arguments.out,
            scale=arguments.scale,
            only=only,
            data=arguments.data,
            engine=engine,
            progress=progress,
            overwrite=arguments.overwrite,
        )
    show_result(arguments, result)
    written = [Path(arguments.out) / name for name in ("claims.json", "figures", "report.html")]
    for path in filter(Path.exists, written):
        print(path, file=sys.stderr if arguments.json else sys.stdout)
    return 2 if result.failed else 0
