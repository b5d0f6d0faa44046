"""normgrowth reproduce: every figure and claim of the paper, computed here, with a verdict."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from normgrowth.cli.source import add_engine

EXAMPLES = """examples:
  normgrowth reproduce                                    (what is embedded, minutes on two cores)
  normgrowth reproduce --only fig2,heads-bimodal
  normgrowth reproduce --scale paper --data corpora --engine ray --address auto

A second call repeats only what changed, settings or code. Verdicts are computed from records.
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
        "--scale", choices=("demo", "paper"), default="demo", help="how large (%(default)s): see below"
    )
    parser.add_argument(
        "--only", default="", metavar="NAME,NAME", help="figures (fig2), table1 or claims by id"
    )
    parser.add_argument("--data", metavar="DIR", help="folder that holds penn and wikitext-2")
    parser.add_argument("--list", action="store_true", help="print claims, stages and their cost, and stop")
    add_engine(parser, "processes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.engine.choice import chosen
    from normgrowth.paper import reproduce as paper
    from normgrowth.paper.figures import draw_figures
    from normgrowth.report.claims import print_claims, print_errata
    from normgrowth.report.terminal import Progress

    only = [name for name in arguments.only.split(",") if name]
    paper.chosen(only)  # what is unknown is said before anything is run
    if arguments.list or arguments.scale == "paper":
        _say_cost(paper.stages(arguments.scale), paper.chosen(only)[1])
        if arguments.list:
            return 0
    with (
        Progress(of_bytes=False) as bar,
        chosen(arguments.engine, arguments.address, arguments.workers, processes=True) as engine,
    ):
        assert engine is not None
        telling = paper.Telling(
            begins=lambda stage, left: _line(f"{stage.name}: {stage.title} (about {left / 60:.0f} min left)"),
            moves=bar,
            ends=lambda stage, how: _line(f"{stage.name}: {how}"),
        )
        found = paper.reproduce(
            arguments.out,
            scale=arguments.scale,
            only=only,
            data=arguments.data,
            engine=engine,
            telling=telling,
        )
    paths = draw_figures(found.evidence, Path(arguments.out) / "figures", only=only)
    facts = found.facts()
    if arguments.json:
        json.dump(facts, sys.stdout)
        print()
    else:
        print_claims(facts["claims"])
        if facts["errata"]:
            print_errata(facts["errata"])
    for path in [*paths, Path(arguments.out) / paper.RESULTS]:
        print(path, file=sys.stderr if arguments.json else sys.stdout)
    return 2 if found.failed else 0


def _say_cost(stages: Any, needed: set[str]) -> None:
    for stage in stages:
        if stage.name in needed:
            _line(f"{stage.name}: {stage.title}, about {_long(stage.seconds)} on two cores")


def _long(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.0f} hours"


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
