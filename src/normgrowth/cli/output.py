"""How a command that made records says what it found: a table or JSON on stdout, figures in the folder."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normgrowth.records import Records
    from normgrowth.results import Result


def show_result(arguments: argparse.Namespace, result: "Result", **options: Any) -> None:
    """Print the result: a table, or everything as JSON with --json. options: for the file that shows its kind."""
    from normgrowth.report.dispatch import show
    from normgrowth.results import Result

    if arguments.json:
        more = {name: one.to_json() for name, one in options.items() if isinstance(one, Result)}
        json.dump({**result.to_json(), **more}, sys.stdout)
        print()
    else:
        show(result, **options)


def say_paths(arguments: argparse.Namespace, paths: Sequence[Path]) -> None:
    """Print which figures were written; not between JSON."""
    for path in paths:
        print(path, file=sys.stderr if arguments.json else sys.stdout)


def tell(
    arguments: argparse.Namespace,
    records: "Records",
    table: "Callable[[Records], None]",
    figures: Callable[[Path], list[Path]] | None = None,
    **more: Any,
) -> None:
    """Print the table, or everything as JSON with --json, and with -o draw the figures; more: further JSON."""
    if arguments.json:
        json.dump({"made_by": records.made_by, "records": records.to_rows(), **more}, sys.stdout)
        print()
    else:
        table(records)
    if arguments.out and figures:
        for path in figures(Path(arguments.out) / "figures"):
            print(path, file=sys.stderr if arguments.json else sys.stdout)
