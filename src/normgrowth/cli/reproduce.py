"""normgrowth reproduce."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from normgrowth.cli.command import Action, add_display, add_engine, engine_of, say_paths, show_result
from normgrowth.cli.options import OPTIONS, several

WRITTEN = ("claims.json", "figures", "report.html")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", default="reproduction", metavar="DIR", help=f"{OPTIONS['out'].help} [reproduction]"
    )
    text = "replace stages that were run at another scale or on another corpus"
    parser.add_argument("--overwrite", action="store_true", help=text)
    text = "size of data and models: demo (embedded data) or paper (the paper's sizes) [demo]"
    parser.add_argument("--scale", choices=("demo", "paper"), default="demo", help=text)
    text = "reproduce only these figures (fig2), table1 or claims by id, as in docs/claims.md [all]"
    parser.add_argument(
        "--only", type=several(str, "fig2,table1"), default=(), metavar="NAME,NAME", help=text
    )
    parser.add_argument("--data", metavar="DIR", help="folder with the corpora penn or wikitext-2, or both")
    text = "file with a sentence per line for Figure 2 [brown.txt in --data, else Python's documentation]"
    parser.add_argument("--text", metavar="FILE", help=text)
    text = "measure Figure 2 on these folders or hub ids, named as the models (t5-base) [by --scale]"
    parser.add_argument("--models", nargs="+", default=(), metavar="FOLDER", help=text)
    text = "judge Figures 1 and 5 on these checkpoints of T5, or on the output folder of their trace"
    parser.add_argument("--t5", metavar="SOURCE", help=text)
    parser.add_argument(
        "--list", action="store_true", help="print a table of the stages and how long they take, and stop"
    )
    text = "print all claims, errata, departures and stages, not only the most notable claims"
    parser.add_argument("--verbose", action="store_true", help=text)
    add_engine(parser)
    add_display(parser)


def _reproduce(arguments: argparse.Namespace) -> int:
    from normgrowth.paper.run_stages import planned_stages
    from normgrowth.report.terminal.console import Progress, new_console
    from normgrowth.report.terminal.reproduction import show_stages
    from normgrowth.reproduce import reproduce

    traced = arguments.t5 is not None
    stages = planned_stages(arguments.only, arguments.scale, Path(arguments.out), traced_t5=traced)
    if arguments.list and arguments.json:
        json.dump({"scale": arguments.scale, "stages": [asdict(stage) for stage in stages]}, sys.stdout)
        print()
        return 0
    if arguments.list:
        show_stages(stages, new_console(wide=arguments.wide))
        return 0
    for stage in (stage for stage in stages if not stage.finished):
        print(f"stage {stage.name}: {stage.title}; takes {stage.takes}", file=sys.stderr)
    with Progress(of_bytes=False) as progress, engine_of(arguments, processes=True) as engine:
        result = reproduce(
            arguments.out,
            scale=arguments.scale,
            only=arguments.only,
            data=arguments.data,
            text=arguments.text,
            t5=arguments.t5,
            models=arguments.models,
            engine=engine,
            progress=progress,
            overwrite=arguments.overwrite,
        )
    show_result(arguments, result, {"verbose": arguments.verbose or bool(arguments.only)})
    say_paths(arguments, [path for name in WRITTEN if (path := Path(arguments.out) / name).exists()])
    return 2 if result.failed or result.incomplete else 0


COMMAND = Action(
    summary="compute the paper's figures and claims, with a verdict for each",
    description="Compute the paper's figures and tables, compare them with the published ones, and judge\neach claim.",
    examples="""  normgrowth reproduce                                    (embedded data, minutes on two cores)
  normgrowth reproduce --only fig2,heads-bimodal
  normgrowth reproduce --scale paper --data corpora --engine ray --ray-address auto
  normgrowth reproduce --only fig2,saturation-small --models weights/t5-small weights/t5-base
  normgrowth reproduce --only norm-sqrt,fig1,fig5 --t5 gs://t5-data/pretrained_models/RUN

A second call runs only stages whose version or settings changed. --list prints how long each stage
takes, and stops.""",
    configure_options=_options,
    action=_reproduce,
    resumes=True,
)
