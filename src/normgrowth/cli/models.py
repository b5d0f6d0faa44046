"""What commands on models have in common: how a pass is asked for, how models are loaded and put into one table."""

import argparse
from typing import TYPE_CHECKING

from normgrowth.cli.source import add_attention, positive

if TYPE_CHECKING:
    from normgrowth.network.models import Loaded
    from normgrowth.records import Records


def add_passes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-tokens", type=positive, default=2048, metavar="N", help="in a pass (2048)")
    add_attention(parser)
    parser.add_argument("--dtype", help="float64, float32 (default), bfloat16 or float16")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder for the records (parquet) and figures")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")


def each_once(models: list[str]) -> list[str]:
    from normgrowth.errors import InputError

    if len(set(models)) < len(models):
        raise InputError("a model is named twice")
    return models


def loaded(arguments: argparse.Namespace, model: str) -> "Loaded":
    from normgrowth.network.models import load_model
    from normgrowth.report.degrees import working

    with working(f"{model}: loading"):
        return load_model(
            model, seed=arguments.seed, attn_implementation=arguments.attn, dtype=arguments.dtype
        )


def together(command: str, several: list["Records"]) -> "Records":
    """One table, a run for each model; what made each, under its name."""
    from normgrowth.records import Records

    runs = {one.made_by["source"]: one.made_by for one in several}
    many = len(several) > 1
    notes = [f"{f'{run}: ' if many else ''}{note}" for run, one in runs.items() for note in one["notes"]]
    return Records.joined(several, {"command": command, "runs": runs, "notes": notes, "problems": []})
