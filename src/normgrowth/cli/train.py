"""normgrowth train."""

import argparse

from normgrowth.cli.command import Action, add_display, show_result
from normgrowth.cli.options import OPTIONS, positive
from normgrowth.cli.training_options import add_settings, settings_of


def _options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser, "paper")
    parser.add_argument("--data", metavar="DIR", help=OPTIONS["data"].help)
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help=OPTIONS["out"].help)
    parser.add_argument("--overwrite", action="store_true", help=OPTIONS["overwrite"].help)
    parser.add_argument("--device", help="device, for example cuda [cuda if available, else cpu]")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads of PyTorch [PyTorch's]")
    add_display(parser)


def _train(arguments: argparse.Namespace) -> int:
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.run import TrainProgress
    from normgrowth.tracking.distributed import is_main, process_group
    from normgrowth.train import train

    settings = settings_of(arguments)
    with process_group(), Progress(of_bytes=False) as bar:
        result = train(
            settings,
            arguments.out,
            data=arguments.data,
            device=arguments.device,
            threads=arguments.threads,
            overwrite=arguments.overwrite,
            progress=TrainProgress(bar),
        )
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
