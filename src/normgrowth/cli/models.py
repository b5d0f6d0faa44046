"""What commands on models have in common: how a pass is asked for, how models are loaded and put into one table."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from normgrowth.cli.source import add_attention, add_model_type, positive

if TYPE_CHECKING:
    from normgrowth.network.models.load import Loaded
    from normgrowth.records import Records


def add_passes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-tokens", type=positive, default=2048, metavar="N", help="in a pass (2048)")
    add_attention(parser)
    add_model_type(parser)
    parser.add_argument("--dtype", help="float64, float32 (default), bfloat16 or float16")
    add_out(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", metavar="DIR", help="output folder for records (parquet) and figures")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace another result in the output folder"
    )


class Output:
    """The output folder of a command, if it has one: checked before anything is measured, written afterwards.

    request: the options that decide the result. Another request's result is not replaced without --overwrite.
    """

    def __init__(self, arguments: argparse.Namespace, kind: str, *options: str) -> None:
        from normgrowth.workspace import Workspace

        self.folder = Path(arguments.out) if arguments.out else None
        self.kind, self.overwrite = kind, arguments.overwrite
        self.request = {name: getattr(arguments, name) for name in options}
        Workspace(self.folder, kind, overwrite=self.overwrite).check(self.request)

    def write(self, records: "Records") -> None:
        from normgrowth.workspace import Workspace

        with Workspace.open(self.folder, self.kind, self.request, overwrite=self.overwrite) as workspace:
            if workspace.folder is not None:
                records.write(workspace.folder)


def each_once(models: list[str]) -> list[str]:
    from normgrowth.errors import InputError

    if len(set(models)) < len(models):
        raise InputError("a model is named twice")
    return models


def loaded(arguments: argparse.Namespace, model: str) -> "Loaded":
    from normgrowth.network.models.load import load_model
    from normgrowth.report.terminal.degrees import working

    with working(f"{model}: loading"):
        return load_model(
            model,
            seed=arguments.seed,
            attn_implementation=arguments.attn,
            dtype=arguments.dtype,
            model_type=arguments.model_type,
        )


def together(command: str, several: list["Records"]) -> "Records":
    """One table, a run for each model; what made each, under its name."""
    from normgrowth.records import Records

    runs = {one.made_by["source"]: one.made_by for one in several}
    many = len(several) > 1
    notes = [f"{f'{run}: ' if many else ''}{note}" for run, one in runs.items() for note in one["notes"]]
    return Records.joined(several, {"command": command, "runs": runs, "notes": notes, "problems": []})
