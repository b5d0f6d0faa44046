"""The command line: `normgrowth COMMAND ...`. The file cli/COMMAND.py declares a command.

Exit codes: 0 done; 1 a check failed; 2 usage or input error, with a line on stderr; 130 interrupted.
"""

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TextIO

from normgrowth.cli.command import Action, Command
from normgrowth.errors import InputError, MissingDependency, SeriesWarning
from normgrowth.text import printable

# The commands, grouped by task.
GROUPS: dict[str, tuple[str, ...]] = {
    "Measure checkpoints": ("trace", "parameters", "lint", "compare"),
    "Explain growth": ("fit", "dynamics"),
    "Examine a network": ("saturation", "heads", "degrees", "scaling", "behavior"),
    "Train and track": ("train", "sweep", "watch"),
    "Show results": ("plot", "report"),
    "Reproduce the paper": ("reproduce",),
}
EXTRAS = {"torch": "torch", "transformers": "hf"}  # optional package -> the extra that installs it
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        try:
            return _main(argv)
        finally:  # also after SystemExit: --help of a command
            sys.stdout.flush()
    except OSError as error:
        try:
            sys.stdout.flush()
        except (
            OSError
        ):  # a closed pipe or a full disk: discard the rest, so that Python does not fail at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 0
        _line(f"{error.filename or 'output'}: {error.strerror or error}")
        return 2


def _main(argv: Sequence[str] | None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv[0] if argv else ""
    if name == "--version":
        from importlib.metadata import version

        print(version("normgrowth"))
        return 0
    if name in ("", "-h", "--help"):
        print(overview())
        return 0 if name else 2
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, 1)
        said = f"; did you mean {near[0]}?" if near else ";"
        _line(f"unknown command {name!r}{said} `normgrowth --help` lists the commands")
        return 2
    arguments = parser_of(name).parse_args(argv[1:])
    for stream in (sys.stdout, sys.stderr):  # escape characters that the terminal cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return _run(arguments)


def overview() -> str:
    lines = [
        "usage: normgrowth COMMAND [OPTIONS]",
        "",
        "Measure how a transformer's weights grow during training.",
    ]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<12} {command_of(name).summary}" for name in names]
    lines += ["", "`normgrowth COMMAND --help` shows the options and examples of a command."]
    return "\n".join([*lines, "Example: normgrowth trace runs/gpt/checkpoints -o traces/gpt"])


def command_of(name: str) -> Command | Action:
    return import_module(f"normgrowth.cli.{name}").COMMAND


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one command; the verbs of other commands are not imported."""
    command = command_of(name)
    parser = argparse.ArgumentParser(
        prog=f"normgrowth {name}",
        description=command.description,
        epilog=f"examples:\n{command.examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.configure(parser)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("always", SeriesWarning)
        warnings.showwarning = _say
        try:
            return arguments.command.run(arguments)
        except InputError as error:
            _line(str(error))
            return 2
        except ModuleNotFoundError as error:
            if error.name not in EXTRAS:
                raise
            _line(str(MissingDependency(error.name, f"pip install 'normgrowth[{EXTRAS[error.name]}]'")))
            return 2
        except KeyboardInterrupt:
            kept = f"; results so far are kept in {arguments.out}" if _keeps(arguments) else ""
            _line(f"interrupted{kept}")
            return 130


def _keeps(arguments: argparse.Namespace) -> bool:
    """Whether an interrupted command has kept results from which it can resume."""
    out, resumes = getattr(arguments, "out", None), arguments.command.resumes
    resumes = getattr(arguments, resumes) if isinstance(resumes, str) else resumes
    return bool(resumes and out and os.path.isdir(out))


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
        text = warnings.formatwarning(message, category, filename, lineno, line)
        print(text, file=file or sys.stderr, end="")


def _line(text: str) -> None:
    """Print one line on stderr, with control characters escaped."""
    print(f"normgrowth: {printable(text)}", file=sys.stderr, flush=True)
