"""The command line: one file per command, each thin; heavy imports happen inside the handlers.

Exit codes: 0 done; 2 bad input or a result with a problem, said in a line on stderr; 130 interrupted.
"""

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

from normgrowth.cli import (
    compare,
    degrees,
    dynamics,
    figures,
    fit,
    heads,
    lint,
    parameters,
    report,
    reproduce,
    saturation,
    scaling,
    sweep,
    trace,
    train,
    watch,
)
from normgrowth.errors import InputError, SeriesWarning

COMMANDS = (
    trace,
    parameters,
    lint,
    fit,
    dynamics,
    degrees,
    saturation,
    heads,
    scaling,
    train,
    sweep,
    watch,
    compare,
    figures,
    report,
    reproduce,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="normgrowth",
        description="Measure how a transformer's weights grow during training.",
        epilog="Example: normgrowth trace runs/gpt/checkpoints -o traces/gpt",
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.add(subparsers)
    arguments = parser.parse_args(argv)
    if arguments.version:
        from importlib.metadata import version

        print(version("normgrowth"))
        return 0
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 2
    for stream in (sys.stdout, sys.stderr):  # a path or name that the terminal cannot show is spelt out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        warnings.simplefilter("always", SeriesWarning)
        warnings.showwarning = _say
        try:
            code = arguments.run(arguments)
            sys.stdout.flush()
            return code
        except InputError as error:
            _line(str(error))
            return 2
        except KeyboardInterrupt:
            kept = f"; what was measured is kept in {arguments.out}" if _keeps(arguments) else ""
            _line(f"interrupted{kept}")
            return 130
        except BrokenPipeError:
            # Whoever read our output has gone. Nothing to add, and nothing to flush when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            _line(f"{error.filename or 'output'}: {error.strerror or error}")
            return 2


def _keeps(arguments: argparse.Namespace) -> bool:
    """Whether a command that is interrupted leaves results that it goes on from."""
    series = arguments.run is saturation.run and arguments.config
    resumes = arguments.run in [command.run for command in (trace, train, sweep, reproduce)]
    return bool((resumes or series) and arguments.out and os.path.isdir(arguments.out))


def _say(
    message: Any,
    category: Any,
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, SeriesWarning):
        _line(str(message))
    else:
        print(
            warnings.formatwarning(message, category, filename, lineno, line), file=file or sys.stderr, end=""
        )


def _line(text: str) -> None:
    """One line, whatever names it quotes: control characters are shown, not sent to the terminal."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    print(f"normgrowth: {shown}", file=sys.stderr, flush=True)
