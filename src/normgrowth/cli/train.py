"""normgrowth train."""

import argparse

from normgrowth.cli.command import Action, add_display, show_result
from normgrowth.cli.options import Option, add_options, positive
from normgrowth.cli.training_options import add_settings, settings_of
from normgrowth.train import train

HIDDEN = ("settings", "corpus", "progress", "save_seconds")
OWN = {
    "device": Option("device, for example cuda [cuda if available, else cpu]", "DEVICE"),
    "threads": Option("threads of PyTorch [PyTorch's]", "N", positive),
}


def _options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "paper")
    parser.set_defaults(names=add_options(parser, train, positional=(), without=HIDDEN, own=OWN))
    add_display(parser)


def _train(arguments: argparse.Namespace) -> int:
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.run import TrainProgress
    from normgrowth.tracking.distributed import is_main, process_group

    settings, given = settings_of(arguments), {name: getattr(arguments, name) for name in arguments.names}
    with process_group(), Progress(of_bytes=False) as bar:
        result = train(settings, progress=TrainProgress(bar), **given)
        if not is_main():
            return 0
    show_result(arguments, result)
    return 0


COMMAND = Action(
    summary="train a language model as in the paper, and measure its norms during training",
    description="Train a small transformer of the paper's architecture as a language model. Measure norms, step\n"
    "sizes and angles of the weights, losses and saturation during training, and save checkpoints that\n"
    "the other commands read.",
    examples="""  normgrowth train pydoc -o runs/first --preset small       (Python's documentation; two minutes)
  normgrowth train penn --data corpora -o runs/penn --preset small --kind post_norm --warmup 500
  normgrowth train wikitext-2 --data corpora -o runs/paper  (the paper's size: needs a GPU or days)
  normgrowth train dyck2 -o runs/dyck --preset small --epochs 3
  torchrun --nproc-per-node 2 -m normgrowth train penn --data corpora -o runs/two

Run the same command again to resume; the final weights are the same. Then:
  normgrowth watch runs/first/tracker                             (while it runs)
  normgrowth trace runs/first/checkpoints                         (and lint)
  normgrowth fit runs/first                                       (and plot)
  normgrowth saturation runs/first/best                           (and heads)""",
    configure_options=_options,
    action=_train,
    resumes=True,
)
