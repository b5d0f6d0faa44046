"""Options for every setting of a training run, generated from the fields of `TrainSettings`."""

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, get_args, get_type_hints

from normgrowth.cli.options import integer, real

if TYPE_CHECKING:
    from normgrowth.lab.settings import TrainSettings

HELP = {
    "kind": "placement of the layer norms",
    "layers": "number of blocks",
    "width": "width of the residual stream",
    "heads": "attention heads per block",
    "feedforward": "inner width of the feedforward sublayer",
    "bias": "train without biases",
    "final_norm": "add a final norm (pre-norm kinds only)",
    "tied": "use the token embedding as output head",
    "leaking": "use the mask of the authors' code, which leaks the future; for comparison only",
    "positions": "maximum input length in tokens; longer sentences are split (paper, small: the longest sentence, "
    "up to 1024)",
    "min_count": "words with fewer occurrences become <unk> (paper, small: 1 for penn and wikitext-2, else 2)",
    "longest": "maximum length of a word of a formal language, in symbols",
    "optimizer": "optimizer",
    "lr": "peak learning rate",
    "schedule": "learning rate schedule",
    "warmup": "number of warm-up steps, in which the learning rate rises from 0",
    "hold": "number of steps for which inverse_sqrt stays constant first (T5: 10000 steps at 0.01)",
    "end": "learning rate at the end, for linear and cosine",
    "weight_decay": "weight decay [PyTorch's for the optimizer]",
    "momentum": "momentum of sgd",
    "clip": "clip gradients to this norm",
    "batch": "sentences per batch",
    "epochs": "number of passes through the corpus",
    "steps": "maximum number of training steps",
    "seed": "seed of the initial weights and of the order of the data",
    "evaluate": "when to evaluate: epochs (after each), powers (also after steps 1, 2, 4, ...), or every N steps",
    "track": "when to measure norms: every N steps, or powers (steps 1, 2, 4, ...)",
    "include": "parameters to count: blocks or all",
    "dev_sentences": "number of sentences of the development set",
    "saturation_sentences": "number of sentences to measure saturation on; 0 to skip it",
}
METAVARS = {"evaluate": "WHEN", "track": "WHEN", "include": "WHICH"}
CHOICES = {"schedule": ("constant", "linear", "cosine", "inverse_sqrt")}
CORPUS = (
    "penn, wikitext-2, pydoc, a formal language (anbn, anbncn, dyck1, dyck2, shuffle-dyck, majority, parity), "
    "a text file with a sentence per line, or a folder with train.txt, valid.txt and test.txt"
)


def add_settings(parser: argparse.ArgumentParser, preset: str) -> None:
    """Add the arguments corpus and --preset, and an option for each setting; its value is None if not given."""
    from normgrowth.lab.settings import DEFAULTS, PRESETS, TrainSettings

    defaults = {**DEFAULTS, **PRESETS[preset]}
    parser.add_argument("corpus", metavar="CORPUS", help=CORPUS)
    parser.add_argument(
        "--preset",
        choices=("paper", "small", "tiny"),
        default=preset,
        help=f"set of defaults; the defaults in brackets below are those of {preset} [{preset}]",
    )
    hints = get_type_hints(TrainSettings)
    for field in fields(TrainSettings):
        if field.name == "corpus":
            continue
        flag = f"--{field.name.replace('_', '-')}"
        name, text, default = field.name, HELP[field.name], defaults.get(field.name)
        if field.name == "dev_sentences":
            default = default or "all"
        if default is not None and not isinstance(default, bool):
            text += f" [{default}]"
        kinds = [
            kind for kind in get_args(hints[field.name]) or [hints[field.name]] if kind is not type(None)
        ]
        if kinds == [bool]:
            turned_off = bool(field.default)
            action = "store_false" if turned_off else "store_true"
            flag = f"--no-{field.name.replace('_', '-')}" if turned_off else flag
            parser.add_argument(flag, dest=name, help=text, action=action, default=None)
        elif choices := CHOICES.get(field.name) or [kind for kind in kinds if isinstance(kind, str)]:
            parser.add_argument(flag, dest=name, help=text, choices=tuple(choices))
        else:
            parse = {int: integer, float: real}.get(kinds[0], str)
            metavar = METAVARS.get(field.name, "N" if kinds[0] is int else "X")
            parser.add_argument(flag, dest=name, help=text, type=parse, metavar=metavar)


def settings_of(arguments: argparse.Namespace) -> "TrainSettings":
    """The settings of the preset, with the given options."""
    from normgrowth.lab.settings import preset

    given = {name: value for name in HELP if (value := getattr(arguments, name)) is not None}
    return preset(arguments.preset, arguments.corpus, **given)
