"""normgrowth sweep: where growth ends, over learning rate and weight decay or any two settings."""

import argparse
import sys
from pathlib import Path
from typing import Any

from normgrowth.cli.output import show_result
from normgrowth.cli.source import add_engine, positive, real
from normgrowth.cli.train import add_settings, given

EXAMPLES = """examples:
  normgrowth sweep pydoc -o sweeps/first --x lr=1e-4:1e-1:4 --y weight_decay=1e-3:1:4      (a few minutes)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/adamw --refine                       (the boundary only)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/adamw                                (20 x 20: fills the rest)
  normgrowth sweep wikitext-2 --data corpora -o sweeps/sgd --optimizer sgd --x lr=1e-3:10:20
  normgrowth sweep dyck2 -o sweeps/kinds --x kind=post_norm,usual_pre_norm --y weight_decay=1e-3:1:10
  normgrowth sweep wikitext-2 --data /corpora -o sweeps/paper --preset paper --epochs 1 --engine ray --address auto

Stopped in any way, the same command goes on. A finer grid takes over the coarse one's cells.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sweep",
        help="train over a grid of two settings: where does the norm grow, and where does growth end?",
        description="Train a small language model for each cell of a grid, learning rate and weight decay by default,\n"
        "and say where the norm grows, by which terms of its budget, and where growth ends (Figure 6).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(parser, "tiny")
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="DIR",
        help="output folder; run the same command again to resume",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the records of a sweep with other settings; its cells are kept",
    )
    for axis, default in (("x", "lr=1e-5:1e-1:20"), ("y", "weight_decay=1e-5:1e-1:20")):
        parser.add_argument(
            f"--{axis}",
            default=default,
            metavar="SETTING=VALUES",
            help="FROM:TO:COUNT on a logarithmic scale, or a list V,V,V (default: %(default)s)",
        )
    parser.add_argument(
        "--refine", action="store_true", help="train only the cells that tell where growth ends in y"
    )
    parser.add_argument("--limit", type=real, metavar="SECONDS", help="for a cell; it then ends where it is")
    parser.add_argument(
        "--together", type=positive, metavar="N", help="cells to train in one stack (default: as many as pay)"
    )
    add_engine(parser, "processes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.engine.select import chosen
    from normgrowth.lab.settings import preset
    from normgrowth.lab.sweep import sweep
    from normgrowth.report.figures.sweep import draw_sweep
    from normgrowth.report.terminal.console import Progress

    settings = preset(arguments.preset, arguments.corpus, **given(arguments))
    x, y = _axis("x", arguments.x), _axis("y", arguments.y)
    with (
        Progress(of_bytes=False) as bar,
        chosen(arguments.engine, arguments.address, arguments.workers, processes=True) as engine,
    ):
        result = sweep(
            settings,
            arguments.out,
            x=x,
            y=y,
            refine=arguments.refine,
            limit=arguments.limit,
            data=arguments.data,
            engine=engine,
            together=arguments.together,
            progress=bar,
            overwrite=arguments.overwrite,
        )
    show_result(arguments, result)
    for path in draw_sweep(result, Path(arguments.out) / "figures"):
        print(path, file=sys.stderr if arguments.json else sys.stdout)
    return 2 if result.problems else 0


def _axis(option: str, text: str) -> Any:
    """lr=1e-5:1e-1:20, layers=1,2,4 or kind=post_norm,usual_pre_norm."""
    from normgrowth.errors import InputError
    from normgrowth.lab.cells.axis import Axis

    setting, equals, values = text.partition("=")
    if not equals or not values:
        raise InputError(f"--{option} {text}: is not of the form lr=1e-5:1e-1:20 or layers=1,2,4")
    setting = setting.replace("-", "_")
    try:
        if ":" in values:
            low, high, count = values.split(":")
            return Axis.spaced(setting, float(low), float(high), int(count))
        return Axis(setting, tuple(map(_value, values.split(","))))
    except ValueError as error:
        if isinstance(error, InputError):
            raise InputError(f"--{option} {text}: {error}") from error
        raise InputError(f"--{option} {text}: is not of the form lr=1e-5:1e-1:20 or layers=1,2,4") from error


def _value(text: str) -> int | float | str | bool | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
