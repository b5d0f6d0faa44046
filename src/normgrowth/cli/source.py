"""Arguments that every command on checkpoints takes."""

import argparse


def add_source(parser: argparse.ArgumentParser, scope: str = "blocks") -> None:
    parser.add_argument(
        "source",
        nargs="+",
        help="a checkpoint file, a folder, a quoted glob, several of these, or hf://org/repo@revision-pattern",
    )
    parser.add_argument(
        "--scope",
        choices=("blocks", "encoder", "decoder", "all"),
        default=scope,
        help="what counts: all blocks, those of one stack, or every parameter; never buffers "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--select", metavar="REGEX", help="count the parameters whose name matches, and no others"
    )
    parser.add_argument("--exclude", metavar="REGEX", help="do not count parameters whose name matches")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="CLASS",
        help="a class that PyTorch files may create, by full name; only for files that you trust",
    )
    parser.add_argument("--endpoint", metavar="URL", help="another address than the Hugging Face hub's")


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=_positive, metavar="N", help="threads (default: all cores)")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def source_of(arguments: argparse.Namespace) -> str | list[str]:
    return arguments.source[0] if len(arguments.source) == 1 else arguments.source
