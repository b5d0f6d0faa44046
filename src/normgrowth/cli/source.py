"""Arguments that several commands take: on checkpoints, on models."""

import argparse
from math import nan

from normgrowth.checkpoints.blocks import DEFAULT_INCLUDE, INCLUDE_CHOICES


def add_source(parser: argparse.ArgumentParser, include: str = DEFAULT_INCLUDE) -> None:
    parser.add_argument(
        "source",
        nargs="+",
        help="a checkpoint file, a folder, a quoted glob, the same at https://, s3:// or gs://, several of these, "
        "or hf://org/repo@revision-pattern",
    )
    parser.add_argument(
        "--include",
        choices=INCLUDE_CHOICES,
        default=include,
        help="what counts: all blocks, those of one stack, or every parameter; never buffers "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--select", metavar="REGEX", help="count the parameters whose name matches, and no others"
    )
    parser.add_argument("--exclude", metavar="REGEX", help="do not count parameters whose name matches")
    parser.add_argument("--endpoint", metavar="URL", help="another address than the Hugging Face hub's")


MODEL = "a hub id, a folder with config.json, a config alone (random weights), or minilm"


def add_text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text", metavar="FILE", help="one sentence a line (default: Python's documentation)"
    )


def add_attention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attn", choices=("eager", "sdpa"), help="which attention of transformers to run")
    parser.add_argument("--seed", type=natural, default=0, help="of random weights (0)")


def add_model_type(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model-type",
        metavar="NAME",
        help="architecture of a config.json without model_type, such as bert, gpt2 or llama",
    )


def add_fixed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fixed",
        nargs="+",
        metavar="NAME",
        help="parameters that do not grow, by name or pattern, for example '*.A_log' (default: none)",
    )


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


def whole(text: str, least: int | None = None) -> int:
    """An integer, of at least so much."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid integer {text!r}") from None
    if least is not None and number < least:
        raise argparse.ArgumentTypeError(f"must be >= {least}, got {text}")
    return number


def positive(text: str) -> int:
    return whole(text, 1)


def natural(text: str) -> int:
    return whole(text, 0)


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}") from None


def integers(text: str) -> tuple[int, ...]:
    """1,10,100."""
    try:
        return tuple(whole(part) for part in text.split(","))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} in {text!r} (examples: 1 or 1,10,100)") from None


def size(text: str) -> int:
    """Bytes, 1 or more: 512M, 1G, 2.5G."""
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper())
    try:
        found = float(text[:-1] if unit else text) * 2 ** (unit or 0)
    except ValueError:
        found = nan
    if not 1 <= found < 2**60:
        raise argparse.ArgumentTypeError(f"invalid size {text!r} (examples: 512M, 2G)")
    return int(found)


def source_of(arguments: argparse.Namespace) -> str | list[str]:
    return arguments.source[0] if len(arguments.source) == 1 else arguments.source
