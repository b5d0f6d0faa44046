"""normgrowth reproduce: every figure and claim of the paper, computed here, with a verdict."""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.cli.source import add_engine

if TYPE_CHECKING:
    from normgrowth.paper.stages.cost import Machine
    from normgrowth.paper.stages.plan import Stage

EXAMPLES = """examples:
  normgrowth reproduce                                    (what is embedded, minutes on two cores)
  normgrowth reproduce --only fig2,heads-bimodal
  normgrowth reproduce --scale paper --data corpora --engine ray --address auto

A second call repeats only what changed, settings or code. Verdicts are computed from records. With --scale paper the
command first says what each stage trains, and how long that takes on this machine.
"""
CLUSTERS = (16, 64, 400)  # cores, for which the cost is told


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
    parser.add_argument("--list", action="store_true", help="print claims, stages and their cost, and stop")
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
    machine = None
    if arguments.list or arguments.scale == "paper":
        wanted = [stage for stage in paper.stages(arguments.scale, arguments.data) if stage.name in needed]
        if any(stage.cost.tasks for stage in wanted):
            machine = paper.this_machine()
        for line in cost_lines(wanted, machine, arguments.workers):
            _line(line)
        if arguments.list:
            return 0
    with (
        Progress(of_bytes=False) as bar,
        chosen(arguments.engine, arguments.address, arguments.workers, processes=True) as engine,
    ):
        assert engine is not None
        if machine is not None and arguments.engine == "ray":
            machine = replace(machine, cores=engine.workers)
        telling = paper.Telling(
            begins=lambda stage, left: _line(
                f"{stage.name}: {stage.title} (about {_long(left)} left in all)"
            ),
            moves=lambda done, of, label, left: bar(done, of, f"{label} (about {_long(left)} left in all)"),
            ends=lambda stage, how: _line(f"{stage.name}: {how}"),
        )
        found = paper.reproduce(
            arguments.out,
            scale=arguments.scale,
            only=only,
            data=arguments.data,
            engine=engine,
            telling=telling,
            machine=machine,
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
    return 2 if found.failed else 0


def write_page(out: Path, figures: "Sequence[Path]", facts: dict[str, Any]) -> Path:
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


def cost_lines(stages: "Sequence[Stage]", machine: "Machine | None", workers: int | None = None) -> list[str]:
    """What each stage trains and takes on this machine, all of them, and how a cluster would divide it."""
    here = workers or (machine.cores if machine else 1)
    seconds = [stage.cost.on(machine, here) for stage in stages]
    lines = [
        f"{stage.name}: {stage.title}; trains {stage.cost.trains}; about {_long(own)}"
        for stage, own in zip(stages, seconds, strict=True)
    ]
    where = (
        f"on this machine ({here} at a time, {machine.speed / 1e9:.0f} GFLOP/s each"
        if machine
        else "on two cores"
    )
    if machine:
        where += f"; its GPU {machine.gpu / 1e9:,.0f})" if machine.gpu else ")"
    lines.append(f"in total about {_long(sum(seconds))} {where}")
    divided = [stage for stage in stages if stage.cost.tasks]
    if machine and divided:
        tasks = ", ".join(
            f"{stage.name} into {' and then '.join(f'{len(group)} tasks' for group in stage.cost.tasks)}"
            for stage in divided
        )
        lines.append(f"--engine ray divides {tasks}, one core each; with cores like these:")
        for cores in CLUSTERS:
            cluster = replace(machine, cores=cores, gpu=None)
            total = sum(stage.cost.on(cluster, cores) for stage in stages)
            lines.append(f"  {cores} cores: about {_long(total)} in total")
    return lines


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:,.0f} hours"


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
