"""normgrowth reproduce: every figure and claim of the paper, computed here, with a verdict."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
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
    from normgrowth.engine.select import chosen
    from normgrowth.paper import reproduce as paper
    from normgrowth.paper.paper_figures import draw_figures
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.reproduction import print_claims, print_errata

    only = [name for name in arguments.only.split(",") if name]
    needed = paper.chosen(only)[1]  # what is unknown is said before anything is run
    if arguments.list or arguments.scale == "paper":
        for stage in (stage for stage in paper.STAGES.values() if stage.name in needed):
            print(f"{stage.name}: {stage.title}; takes {stage.takes[arguments.scale]}", file=sys.stderr)
        if arguments.list:
            return 0
    with (
        Progress(of_bytes=False) as bar,
        chosen(arguments.engine, arguments.address, arguments.workers, processes=True) as engine,
    ):
        found = paper.reproduce(
            arguments.out,
            scale=arguments.scale,
            only=only,
            data=arguments.data,
            engine=engine,
            progress=bar,
            overwrite=arguments.overwrite,
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
    page = write_page(Path(arguments.out), paths, facts)
    for path in [*paths, Path(arguments.out) / paper.RESULTS, page]:
        print(path, file=sys.stderr if arguments.json else sys.stdout)
    for stage in found.stages:
        print(f"{stage.name}: {stage}", file=sys.stderr)
    return 2 if any(stage.failed for stage in found.stages) else 0


def write_page(out: Path, figures: Sequence[Path], facts: dict[str, Any]) -> Path:
    """Verdicts, figures and errata, and what the stages measured: on one page."""
    from normgrowth.cli.report import laws, versions
    from normgrowth.paper.paper_figures import TITLES
    from normgrowth.report.page.folders import report
    from normgrowth.report.page.pieces import Picture

    pictures = []
    for path in figures:
        if path.suffix == ".svg":
            number = f"Fig. {path.stem.removeprefix('fig')}"
            judged = [claim for claim in facts["claims"] if number in claim["where"]]
            said = " ".join(f"{claim['id']}: {claim['verdict']}. {claim['reason']}" for claim in judged)
            title = f"Figure {path.stem.removeprefix('fig')}: {TITLES[path.stem]}"
            pictures.append(Picture(path.stem, title, f"{TITLES[path.stem]}. {said}", path.read_bytes()))
    made_by = {"command": shlex.join(["normgrowth", *sys.argv[1:]]), "versions": versions()}
    title = f"Merrill et al. 2021, reproduced: {facts['scale']}"
    return report([out], out / "report.html", title=title, fitted=laws, pictures=pictures, made_by=made_by)
