"""normgrowth dynamics: which model of training a trace supports, given its learning rates."""

import argparse
import json
import sys
from math import isfinite
from typing import Any

from normgrowth.cli.figures import PUBLISHED
from normgrowth.cli.source import real

EXAMPLES = """schedules: constant:lr=3e-4   linear:lr=1e-3,steps=10000,warmup=500   cosine:lr=1e-3,steps=10000,end=1e-4
           inverse_sqrt:lr=5e-4,warmup=4000   inverse_sqrt:lr=0.01,hold=10000 (that of T5)

examples:
  normgrowth dynamics published:t5
  normgrowth dynamics traces/gpt --schedule cosine:lr=6e-4,steps=600000,warmup=2000 --weight-decay 0.1 --betas 0.9,0.95
  normgrowth dynamics traces/gpt --schedule 1e-3 --level layer --name layer.3 --json
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "dynamics",
        help="aligned or misaligned: what the learning rates predict, and the equilibrium under weight decay",
        description="Fit κ in ‖δ‖ = κη‖θ‖ to a trace, predict its norms under aligned and misaligned dynamics,\n"
        "and set the evidence beside: alignment, step sizes, the budget of growth, the direction,\n"
        "the shares of the layers. With a weight decay also the equilibrium of random gradients.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "trace", metavar="DIR", help="a folder that `normgrowth trace -o` wrote, or published:t5"
    )
    parser.add_argument(
        "--schedule", metavar="SPEC", help="the learning rates, see below; published:t5 has its own"
    )
    parser.add_argument("--level", choices=("model", "layer", "role", "tensor"), default="model")
    parser.add_argument("--name", metavar="NAME", help="which layer, role or tensor")
    parser.add_argument("--kappa", type=real, metavar="K", help="κ of single steps, if training logged it")
    parser.add_argument("--weight-decay", type=real, metavar="L", help="λ; 0 if there was none")
    parser.add_argument(
        "--decay",
        choices=("decoupled", "coupled", "eq3"),
        help="θ -= ηλθ (default for adamw), λθ in the gradient (default for sgd), or θ -= λθ, the paper's eq. (3)",
    )
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--betas", type=_betas, default=(0.9, 0.999), metavar="B1,B2", help="of AdamW")
    parser.add_argument("--momentum", type=real, default=0.0, metavar="M", help="of SGD")
    parser.add_argument(
        "--gradient-norm", type=real, metavar="G", help="for sgd: ‖g‖, with --invariant ‖g‖·‖θ‖"
    )
    parser.add_argument("--invariant", action="store_true", help="the weights are scale-invariant")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def _betas(text: str) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid betas {text!r} (example: 0.9,0.999)") from None
    return first, second


def run(arguments: argparse.Namespace) -> int:
    from normgrowth import schedules
    from normgrowth.dynamics import weight_decay as decays
    from normgrowth.dynamics.alignment import examine
    from normgrowth.dynamics.direction import direction, rows_of, uniformity, uniformity_sentence
    from normgrowth.errors import InputError
    from normgrowth.paper.published.figure1 import SCHEDULE, t5_records
    from normgrowth.records import Records

    if arguments.level != "model" and arguments.name is None:
        raise InputError(f"--level {arguments.level} needs --name: which one")
    if arguments.level == "model" and arguments.name is not None:
        raise InputError(f"--name {arguments.name} needs --level: layer, role or tensor")
    published = arguments.trace == PUBLISHED
    spec = SCHEDULE if arguments.schedule is None and published else arguments.schedule
    if spec is None:
        raise InputError(f"--schedule is needed: the learning rates, as in {schedules.EXAMPLES['cosine']}")
    schedule = schedules.parse(spec)
    records = t5_records() if published else Records.read(arguments.trace)
    thing = {"level": arguments.level, "name": arguments.name}
    names = ("optimizer", "gradient_norm", "betas", "momentum", "decay", "invariant")
    setting = {name: getattr(arguments, name) for name in names}
    weight_decay = felt = arguments.weight_decay
    if weight_decay is not None:
        counts = rows_of(records, **thing).where(quantity="numel").table["value"].to_pylist()
        count = counts[-1] if counts else None
        setting["numel"] = int(count) if count is not None and isfinite(count) else None
        felt = decays.felt_decay(weight_decay, setting)
    evidence = examine(
        records,
        schedule,
        **thing,
        kappa=arguments.kappa,
        weight_decay=felt,
        decay="eq3" if arguments.decay == "eq3" else "decoupled",
    )
    rows, said = [], []
    if weight_decay is not None and (why := decays.lacking(weight_decay, setting)):
        said = [why]
    elif weight_decay is not None:
        rows = decays.settling(evidence.steps, evidence.norms, schedule, weight_decay, **setting)
        kappa = evidence.kappa["misaligned"].value if arguments.kappa is None else arguments.kappa
        said = decays.sentences(rows, weight_decay, kappa, setting)
    levels = [level for level in ("layer", "role", "tensor") if level in records.distinct("level")]
    parts = {level: uniformity(records, level=level) for level in levels}
    content = {
        "trace": arguments.trace,
        "what": arguments.name or "model",
        "parameters": records.parameters,
        "schedule": str(schedule),
        **{key: value for key, value in vars(evidence).items() if key not in PER_MODEL},
        "models": {
            model: {
                **vars(evidence.kappa[model]),
                **{key: getattr(evidence, key)[model] for key in PER_MODEL if key != "kappa"},
            }
            for model in evidence.kappa
        },
        "equilibria": [{**vars(row), "equilibrium": vars(row.equilibrium)} for row in rows],
        "decay_findings": said,
        "direction": _direction(direction(records, **thing)),
        "uniformity": {level: vars(found) for level, found in parts.items()},
        "uniformity_findings": [uniformity_sentence(parts[level], level) for level in levels[:1]],
    }
    if arguments.json:
        json.dump(_plain(content), sys.stdout)
        print()
    else:
        from normgrowth.report.terminal.dynamics import print_dynamics

        print_dynamics(_plain(content))
    return 0


PER_MODEL = ("kappa", "growth_kappa", "predicted", "error")


def _direction(found: Any) -> dict[str, Any]:
    return {**vars(found), "lags": [vars(lag) for lag in found.lags], "doubled": vars(found.doubled)}


def _plain(value: Any) -> Any:
    """For JSON: arrays as lists, and None for what is not finite."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value if not isinstance(value, float) or isfinite(value) else None
