"""normgrowth dynamics: why the norm of a trace grew."""

import argparse
from typing import Any

from normgrowth.cli.source import real

EXAMPLES = """schedules: constant:lr=3e-4   linear:lr=1e-3,steps=10000,warmup=500   cosine:lr=1e-3,steps=10000,end=1e-4
           inverse_sqrt:lr=5e-4,warmup=4000   inverse_sqrt:lr=0.01,hold=10000 (that of T5)

examples:
  normgrowth dynamics traces/gpt
  normgrowth dynamics published:t5
  normgrowth dynamics traces/gpt --schedule cosine:lr=6e-4,steps=600000,warmup=2000 --weight-decay 0.1 --betas 0.9,0.95
  normgrowth dynamics traces/gpt --schedule 1e-3 --level layer --name layer.3 --json
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dynamics",
        help="explain the growth: budget, direction, aligned or misaligned dynamics, weight decay",
        description="Explain the growth of a norm: its budget, the alignment of the steps, the direction, the shares\n"
        "of the layers. With a schedule, fit κ in ‖δ‖ = κη‖θ‖ and predict the norm under aligned and misaligned\n"
        "dynamics; with a weight decay, compare with the equilibrium of random gradients.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace", metavar="DIR", help="folder that `normgrowth trace -o` wrote, or published:t5"
    )
    parser.add_argument(
        "--schedule", metavar="SPEC", help="learning rates, see below; published:t5 has its own"
    )
    parser.add_argument("-o", "--out", metavar="DIR", help="output folder for the result and its figures")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another result in the output folder"
    )
    parser.add_argument(
        "--level",
        choices=("model", "layer", "role", "tensor"),
        default="model",
        help="what to explain [model]",
    )
    parser.add_argument("--name", metavar="NAME", help="name of the layer, role or tensor")
    parser.add_argument("--kappa", type=real, metavar="K", help="κ of single steps, if training logged it")
    parser.add_argument("--weight-decay", type=real, metavar="L", help="weight decay λ; 0 if there was none")
    parser.add_argument(
        "--decay",
        choices=("decoupled", "coupled", "eq3"),
        help="θ -= ηλθ (default for adamw), λθ in the gradient (default for sgd), or θ -= λθ, the paper's eq. (3)",
    )
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="[adamw]")
    parser.add_argument(
        "--betas", type=_betas, default=(0.9, 0.999), metavar="B1,B2", help="of AdamW [0.9,0.999]"
    )
    parser.add_argument("--momentum", type=real, default=0.0, metavar="M", help="momentum of SGD [0]")
    parser.add_argument(
        "--gradient-norm", type=real, metavar="G", help="for sgd: ‖g‖, with --invariant ‖g‖·‖θ‖"
    )
    parser.add_argument("--invariant", action="store_true", help="the weights are scale-invariant")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def _betas(text: str) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid betas {text!r} (example: 0.9,0.999)") from None
    return first, second


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.cli.output import draw_figures, show_result
    from normgrowth.dynamics import dynamics

    names = ("out", "overwrite", "level", "name", "kappa", "weight_decay", "decay")
    names += ("optimizer", "betas", "momentum", "gradient_norm", "invariant")
    options = {name: getattr(arguments, name) for name in names}
    result = dynamics(arguments.trace, arguments.schedule, **options)
    show_result(arguments, result)
    draw_figures(arguments, result)
    return 0
