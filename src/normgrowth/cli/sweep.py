"""normgrowth sweep."""

import argparse

from normgrowth.cli.command import Action, add_display, add_engine, draw_figures, engine_of, show_result
from normgrowth.cli.options import OPTIONS, positive, real
from normgrowth.cli.training_options import add_settings, settings_of


def _options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "tiny")
    parser.add_argument("--data", metavar="DIR", help=OPTIONS["data"].help)
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help=OPTIONS["out"].help)
    text = "replace the result of a sweep with other settings; trained cells are kept"
    parser.add_argument("--overwrite", action="store_true", help=text)
    for axis, default in (("x", "lr=1e-5:1e-1:20"), ("y", "weight_decay=1e-5:1e-1:20")):
        text = f"FROM:TO:COUNT on a logarithmic scale, or a list V,V,V [{default}]"
        parser.add_argument(f"--{axis}", default=default, metavar="SETTING=VALUES", help=text)
    parser.add_argument(
        "--refine", action="store_true", help="train only cells near the edge of growth along y"
    )
    parser.add_argument(
        "--time-limit",
        type=real,
        metavar="SECONDS",
        help="stop the training of a cell after this time",
    )
    text = "number of cells to train in one batch of models [the fastest]"
    parser.add_argument("--stack-size", type=positive, metavar="N", help=text)
    add_engine(parser)
    add_display(parser)


def _sweep(arguments: argparse.Namespace) -> int:
    from normgrowth.lab.cells.axis import Axis
    from normgrowth.report.terminal.console import Progress
    from normgrowth.sweep import sweep

    settings = settings_of(arguments)
    x, y = Axis.parse(arguments.x, "--x"), Axis.parse(arguments.y, "--y")
    with Progress(of_bytes=False) as bar, engine_of(arguments, processes=True) as engine:
        result = sweep(
            settings,
            arguments.out,
            x=x,
            y=y,
            refine=arguments.refine,
            time_limit=arguments.time_limit,
            data=arguments.data,
            engine=engine,
            stack_size=arguments.stack_size,
            progress=bar,
            overwrite=arguments.overwrite,
        )
    show_result(arguments, result)
    draw_figures(arguments, result)
    return 2 if result.problems else 0


COMMAND = Action(
    summary="train over a grid of two settings, and find where growth of the norm ends",
    description="Train a small language model for each cell of a grid of two settings: learning rate × weight decay\n"
    "by default. Show where the norm grows, by how much through steps, alignment and weight decay, and\n"
    "where growth ends (the paper's Figure 6).",
    examples="""  normgrowth sweep pydoc -o sweeps/first --x lr=1e-4:1e-1:4 --y weight_decay=1e-3:1:4  (minutes)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/adamw --refine        (only the boundary)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/adamw                 (the other cells, too)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/sgd --optimizer sgd --x lr=1e-3:10:20
  normgrowth sweep dyck2 -o sweeps/kind --x kind=post_norm,usual_pre_norm --y weight_decay=1e-3:1:9
  normgrowth sweep wikitext-2 --data /corpora -o sweeps/paper --preset paper --epochs 1 \\
      --engine ray --ray-address auto

Run the same command again to resume. A finer grid reuses the cells of a coarser one.""",
    configure_options=_options,
    action=_sweep,
    resumes=True,
)
