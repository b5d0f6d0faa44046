"""normgrowth watch."""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.cli.command import Action
from normgrowth.cli.options import real

if TYPE_CHECKING:
    from normgrowth.trace.result import Trace


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="output folder of a NormTracker (its `out`)")
    parser.add_argument("--every", type=real, default=2.0, metavar="S", help="seconds between updates [2]")
    parser.add_argument("--once", action="store_true", help="show the table once and stop")
    parser.add_argument("--layers", choices=("all", "none"), default="all", help="show rows for layers [all]")


def _watch(arguments: argparse.Namespace) -> int:
    from rich.live import Live

    from normgrowth.errors import InputError
    from normgrowth.report.terminal.console import new_console, print_stripped
    from normgrowth.report.terminal.watch import watch_table

    if not 0 < arguments.every < float("inf"):
        raise InputError(f"--every must be a positive number of seconds, got {arguments.every:g}")
    console = new_console()

    def look() -> Any:
        trace = _read(arguments)
        return (
            f"{arguments.folder}: waiting for the first step"
            if trace is None
            else watch_table(trace, console)
        )

    if arguments.once:
        print_stripped(console, look())
        return 0
    with Live(look(), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(max(0.1, arguments.every))
                live.update(look(), refresh=True)
        except KeyboardInterrupt:  # the normal way to stop
            return 0


def _read(arguments: argparse.Namespace) -> "Trace | None":
    """The latest records; None if the folder is empty and its run may still start."""
    from normgrowth.errors import InputError
    from normgrowth.records import Records
    from normgrowth.stored_result import StoredResult, has_records, why_no_result
    from normgrowth.trace.result import Trace

    folder = Path(arguments.folder)
    if not has_records(folder):
        if not folder.is_dir() or any(has_records(below) for below in folder.iterdir()):
            raise InputError(f"{arguments.folder}: {why_no_result(folder)}")
        if arguments.once:
            raise InputError(
                f"{arguments.folder}: no records yet; start a NormTracker with this folder as `out`"
            )
        return None
    levels = ["part", "model", *(["layer", "layer_matrices"] if arguments.layers == "all" else [])]
    trace = Trace.from_stored(StoredResult.read(folder, levels))
    if arguments.layers == "all":
        return trace
    return replace(trace, records=Records.joined([trace.records.where(level=level) for level in levels]))


COMMAND = Action(
    summary="show a live table of a training run that a NormTracker measures",
    description="Show the latest numbers of a training run per layer, and the history of the norm.\n"
    "The command only reads files: stop and start it at any time.",
    examples="""  normgrowth watch runs/first/norms
  normgrowth watch runs/first/norms --once --layers none     (for a log or a script)""",
    configure_options=_options,
    action=_watch,
)
