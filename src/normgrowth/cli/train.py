"""normgrowth train: a language model as in the paper, with everything measured on the way."""

import argparse
from typing import Any

from normgrowth.cli.output import show_result
from normgrowth.cli.source import positive

EXAMPLES = """examples:
  normgrowth train pydoc -o runs/first --preset small             (text that is always there; two minutes)
  normgrowth train penn --data corpora -o runs/penn --preset small --kind post_norm --warmup 500
  normgrowth train wikitext-2 --data corpora -o runs/paper        (the paper's size: wants a GPU or days)
  normgrowth train dyck2 -o runs/dyck --preset small --epochs 3
  torchrun --nproc-per-node 2 -m normgrowth train penn --data corpora -o runs/two

Stopped in any way, the same command goes on, and ends with the same weights. What it leaves:
  normgrowth watch runs/first/tracker                             (while it runs)
  normgrowth trace runs/first/checkpoints                         (and lint)
  normgrowth fit runs/first                                       (and figures)
  normgrowth saturation runs/first/best
  normgrowth heads runs/first/best
"""

# TrainSettings that the command line takes as they are: name, type, help.
SHAPE: list[tuple[str, Any, str]] = [
    ("layers", positive, "blocks"),
    ("width", positive, "of the residual stream"),
    ("heads", positive, "attention heads of a block"),
    ("feedforward", positive, "inner width of the feedforward sublayer"),
    (
        "positions",
        positive,
        "longer sentences are cut into pieces (default: as many as the longest needs, up to 1024)",
    ),
]
RUN: list[tuple[str, Any, str]] = [
    ("lr", float, "the learning rate, at its peak"),
    ("warmup", int, "steps in which the learning rate rises from 0"),
    ("end", float, "the learning rate at the end, of linear and cosine"),
    ("weight-decay", float, "PyTorch's default for the optimizer, if not given"),
    ("momentum", float, "of sgd"),
    ("clip", float, "the largest gradient norm"),
    ("batch", positive, "sentences"),
    ("epochs", positive, "through the corpus"),
    ("steps", positive, "no more than these"),
    ("seed", int, "of initial weights and order"),
    ("min-count", positive, "rarer words become <unk> (1 for penn and wikitext-2, else 2)"),
    ("longest", positive, "symbols of a word of a formal language"),
]
MEASURED: list[tuple[str, Any, str]] = [
    ("evaluate", str, "after each epoch (epochs), also after steps 1, 2, 4, ... (powers), or each N-th step"),
    ("track", str, "when the tracker measures: each N-th step, or powers"),
    ("include", str, "what the tracker counts: blocks or all"),
    ("dev-sentences", positive, "of the development part (default: all)"),
    ("saturation-sentences", int, "of it, to measure saturation with; 0: none"),
]


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a language model as in the paper, with everything measured on the way",
        description="Train an encoder of the paper as a language model: norms, steps and angles of weights, losses\n"
        "and saturation as it goes, and a series of checkpoints that all commands read.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(parser, "paper")
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="DIR",
        help="output folder; run the same command again to resume",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="remove another result from the output folder first"
    )
    parser.add_argument("--device", help="such as cuda (default: cuda where there is one, else cpu)")
    parser.add_argument("--threads", type=positive, metavar="N", help="of PyTorch (default: its own choice)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def add_settings(parser: argparse.ArgumentParser, preset: str) -> None:
    """The corpus, and every setting of a run; `given` has those that the user named."""
    parser.add_argument(
        "corpus",
        help="penn, wikitext-2, pydoc, a formal language (anbn, anbncn, dyck1, dyck2, shuffle-dyck, majority, parity), "
        "a file with a sentence a line, or a folder with train.txt, valid.txt and test.txt",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="folder that holds penn and wikitext-2 (default: the hub)"
    )
    parser.add_argument(
        "--preset",
        choices=("paper", "small", "tiny"),
        default=preset,
        help="the other settings start from it (%(default)s)",
    )
    parser.add_argument(
        "--kind", choices=("paper_pre_norm", "usual_pre_norm", "post_norm"), help="where norms sit"
    )
    parser.add_argument("--optimizer", choices=("adamw", "adam", "sgd", "adafactor"))
    parser.add_argument("--schedule", choices=("constant", "linear", "cosine", "inverse_sqrt"))
    for name, kind, text in [*SHAPE, *RUN, *MEASURED]:
        parser.add_argument(
            f"--{name}", type=kind, metavar="N" if kind in (positive, int) else "X", help=text
        )
    parser.add_argument(
        "--no-bias", dest="bias", action="store_false", default=None, help="no biases anywhere"
    )
    parser.add_argument(
        "--final-norm", action="store_true", default=None, help="a last norm, of the pre-norms"
    )
    parser.add_argument("--tied", action="store_true", default=None, help="the head is the token embedding")
    parser.add_argument(
        "--leaking",
        action="store_true",
        default=None,
        help="the mask of the authors' code, which shows the future; for comparison only",
    )


def run(arguments: argparse.Namespace) -> int:
    import torch

    from normgrowth.lab.settings import preset
    from normgrowth.lab.train import train
    from normgrowth.report.terminal.console import Progress
    from normgrowth.report.terminal.run import TrainProgress
    from normgrowth.tracking.distributed import is_main, joined

    settings = preset(arguments.preset, arguments.corpus, **given(arguments))
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with joined(), Progress(of_bytes=False) as bar:
        told = TrainProgress(bar)
        result = train(
            settings,
            arguments.out,
            data=arguments.data,
            progress=told,
            device=arguments.device,
            overwrite=arguments.overwrite,
        )
        if not is_main():
            return 0
    show_result(arguments, result)
    return 0


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the user named; all others are the preset's."""
    names = [name.replace("-", "_") for name, *_ in [*SHAPE, *RUN, *MEASURED]]
    names += ["kind", "optimizer", "schedule", "bias", "final_norm", "tied", "leaking"]
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}
