"""A command: a declaration. It parses, calls its verb, and shows the result."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.cli.options import Option, add_options, positive

if TYPE_CHECKING:
    from normgrowth.results import Result

SUPPLIED = ("engine", "progress")  # parameters of verbs that the command itself supplies


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    verb: "module:function", the public function that the command calls. positional: its parameters that are arguments,
    not options. hidden: parameters without an option. own: help and parsers of options that no other command has.
    draws: with -o, save the figures, too. resumes: whether an interrupted call can be resumed. processes: the local
    engine runs processes, not threads. add: adds options that are not parameters of the verb. display: those of them
    that say how the result is shown. adjust: the arguments of the call from the parsed ones. code: the exit code.
    """

    verb: str
    summary: str
    description: str
    examples: str
    positional: tuple[str, ...] = ("source",)
    hidden: tuple[str, ...] = ()
    own: Mapping[str, Option] = field(default_factory=dict)
    draws: bool = False
    resumes: bool = False
    counts_bytes: bool = True  # progress is shown in bytes
    processes: bool = False
    add: Callable[[argparse.ArgumentParser], None] | None = None
    display: tuple[str, ...] = ()
    adjust: Callable[[dict[str, Any], argparse.Namespace], dict[str, Any]] | None = None
    code: Callable[[Any, argparse.Namespace], int] | None = None

    def function(self) -> Callable[..., "Result"]:
        module, name = self.verb.split(":")
        return getattr(import_module(module), name)

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the verb, and those that all commands have."""
        verb = self.function()
        names = add_options(
            parser, verb, positional=self.positional, without=(*SUPPLIED, *self.hidden), own=self.own
        )
        taken = _parameters(verb)
        if "engine" in taken:
            _add_engine(parser, workers="workers" not in taken)
        if "out" not in taken:
            parser.add_argument("-o", "--out", metavar="DIR", help="output folder")
            parser.add_argument("--overwrite", action="store_true", help="replace another result there")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
        if self.add is not None:
            self.add(parser)
        parser.set_defaults(command=self, names=names)

    def run(self, arguments: argparse.Namespace) -> int:
        verb = self.function()
        taken = _parameters(verb)
        given = {name: _single(getattr(arguments, name)) for name in arguments.names}
        if self.adjust is not None:
            given = self.adjust(given, arguments)
        with ExitStack() as stack:
            if "progress" in taken:
                from normgrowth.report.terminal.console import Progress

                given["progress"] = stack.enter_context(Progress(of_bytes=self.counts_bytes))
            if "engine" in taken:
                from normgrowth.engine.select import chosen

                engine = chosen(
                    arguments.engine, arguments.ray_address, arguments.workers, processes=self.processes
                )
                given["engine"] = stack.enter_context(engine)
            result = verb(**given)
        if arguments.out and "out" not in taken:
            result.save(arguments.out, overwrite=arguments.overwrite)
        show_result(arguments, result, {name: getattr(arguments, name) for name in self.display})
        if arguments.out and self.draws:
            from normgrowth.report.dispatch import save_figures

            for path in save_figures(result, Path(arguments.out) / "figures"):
                print(path, file=sys.stderr if arguments.json else sys.stdout)
        return self.code(result, arguments) if self.code is not None else 0


@dataclass(frozen=True)
class Action:
    """A command that returns no result: it shows or draws what is there."""

    summary: str
    description: str
    examples: str
    configure_options: Callable[[argparse.ArgumentParser], None]
    action: Callable[[argparse.Namespace], int]
    resumes: bool = False

    def configure(self, parser: argparse.ArgumentParser) -> None:
        self.configure_options(parser)
        parser.set_defaults(command=self)

    def run(self, arguments: argparse.Namespace) -> int:
        return self.action(arguments)


def show_result(arguments: argparse.Namespace, result: "Result", display: Mapping[str, Any]) -> None:
    """Print the result: a table, or everything as JSON with --json."""
    from normgrowth.report.dispatch import show

    if arguments.json:
        json.dump(result.to_json(), sys.stdout)
        print()
    else:
        show(result, **display)


def _parameters(verb: Callable[..., Any]) -> Mapping[str, Any]:
    import inspect

    return inspect.signature(verb).parameters


def _single(value: Any) -> Any:
    """A list of one argument is that argument: verbs take one source or several."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _add_engine(parser: argparse.ArgumentParser, *, workers: bool) -> None:
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="where the work runs [local]"
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="address of a running Ray: host:port, ray://host:port or auto (default: start one here)",
    )
    if workers:
        parser.add_argument(
            "--workers", type=positive, metavar="N", help="workers (default: all cores)"
        )
