"""Arguments that several commands take: on checkpoints, on models."""

import argparse


def add_source(parser: argparse.ArgumentParser, scope: str = "blocks") -> None:
    parser.add_argument(
        "source",
        nargs="+",
        help="a checkpoint file, a folder, a quoted glob, the same at https://, s3:// or gs://, several of these, "
        "or hf://org/repo@revision-pattern",
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


MODEL = "a hub id, a folder with config.json, a config alone (random weights), or minilm"


def add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text", metavar="FILE", help="one sentence a line (default: Python's documentation)"
    )


def add_attention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attn", choices=("eager", "sdpa"), help="which attention of transformers to run")
    parser.add_argument("--seed", type=int, default=0, help="of random weights (0)")


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=positive, metavar="N", help="threads (default: all cores)")


def add_engine(parser: argparse.ArgumentParser, local: str) -> None:
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where to work: here, or on Ray (%(default)s)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of a running Ray: host:port, ray://host:port or auto (default: a Ray of our own, on this machine)",
    )
    parser.add_argument("--workers", type=positive, metavar="N", help=f"{local} (default: all cores)")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def size(text: str) -> int:
    """Bytes: 512M, 1G, 2.5G."""
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper())
    number = float(text[:-1] if unit else text) * 2 ** (unit or 0)
    if not 1 <= number < 2**60:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 512M or 1G")
    return int(number)


def source_of(arguments: argparse.Namespace) -> str | list[str]:
    return arguments.source[0] if len(arguments.source) == 1 else arguments.source
