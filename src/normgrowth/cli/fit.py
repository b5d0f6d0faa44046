"""normgrowth fit: which growth law the norms follow."""

import argparse
from typing import Any

from normgrowth.cli.source import real, whole

EXAMPLES = """examples:
  normgrowth fit published:t5_norm
  normgrowth fit norms.csv --laws sqrt,sqrt2,power
  normgrowth fit traces/gpt --level layer
  normgrowth fit traces/gpt --from-step 10000 --json

published:NAME is a series of the paper: t5_norm, t5_norm_by_layer.
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fit",
        help="fit growth laws to norms, with intervals and evidence",
        description="Fit growth laws to norms: a·√t + b and its rivals, with r², confidence intervals that\n"
        "respect autocorrelated residuals, and the weight of evidence for each law.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="csv file with the columns step and norm (and layer, for several series), or folder of a trace",
    )
    parser.add_argument("-o", "--out", metavar="DIR", help="output folder for the result and its figures")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another result in the output folder"
    )
    parser.add_argument(
        "--level",
        choices=("model", "layer", "role", "tensor", "head"),
        default="model",
        help="fit the model [default], or each layer, role, tensor or head of a trace",
    )
    parser.add_argument("--quantity", default="norm", metavar="NAME", help="quantity to fit [norm]")
    parser.add_argument(
        "--laws",
        type=_names,
        metavar="NAME,NAME",
        help="laws to fit: sqrt, sqrt2, power2, power, linear, root4, log, relax, constant [all]",
    )
    parser.add_argument("--from-step", type=real, metavar="STEP", help="leave out the points before")
    parser.add_argument("--to-step", type=real, metavar="STEP", help="leave out the points after")
    parser.add_argument("--full", action="store_true", help="show every law for each of several series")
    parser.add_argument(
        "--bootstrap",
        type=whole,
        default=400,
        metavar="N",
        help="bootstrap replicates for the intervals; 0 for none [400]",
    )
    parser.add_argument(
        "--confidence", type=real, default=0.95, metavar="C", help="level of the intervals [0.95]"
    )
    parser.add_argument("--seed", type=whole, default=0, help="seed of the replicates [0]")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print everything as JSON; null where a value is open or undefined",
    )
    parser.set_defaults(run=run)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.cli.output import draw_figures, show_result
    from normgrowth.fit import fit

    fits = fit(
        arguments.files[0] if len(arguments.files) == 1 else arguments.files,
        out=arguments.out,
        overwrite=arguments.overwrite,
        level=arguments.level,
        quantity=arguments.quantity,
        laws=arguments.laws,
        from_step=arguments.from_step,
        to_step=arguments.to_step,
        bootstrap=arguments.bootstrap,
        confidence=arguments.confidence,
        seed=arguments.seed,
    )
    for one in map(fits.select, fits.series) if arguments.full and not arguments.json else [fits]:
        show_result(arguments, one)
    draw_figures(arguments, fits)
    return 0
