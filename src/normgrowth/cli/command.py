"""Commands as declarations: parse the options, call the verb, show the result."""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.cli.options import Option, add_options, positive
from normgrowth.errors import InputError

if TYPE_CHECKING:
    from normgrowth.results import Result

SUPPLIED = ("engine", "progress")  # parameters of verbs that the command itself supplies
Parser = argparse.ArgumentParser
Arguments = argparse.Namespace


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    verb: "module:function", the public function that the command calls. positional: parameters that are arguments,
    not options. hidden: parameters without an option. own: options that only this command has.
    draws: with -o, also write the figures. published: returns the numbers of the paper for --published.
    resumes: whether an interrupted call can be resumed, or the name of the option that makes it resumable.
    processes: the local engine runs processes, not threads. add: adds options that are not parameters of the verb.
    display: the added options that are passed to `show`. adjust: changes or checks the arguments of the call.
    code: returns the exit code.
    """

    verb: str
    summary: str
    description: str
    examples: str
    positional: tuple[str, ...] = ("source",)
    hidden: tuple[str, ...] = ()
    own: Mapping[str, Option] = field(default_factory=dict)
    draws: bool = False
    published: "Callable[[Arguments], Result] | None" = None
    shows_published: bool = False  # --published also adds rows to the table
    resumes: bool | str = False
    counts_bytes: bool = False  # progress is shown in bytes
    processes: bool = False
    add: Callable[[Parser], None] | None = None
    display: tuple[str, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)  # fixed options of `show`
    adjust: Callable[[dict[str, Any], Arguments], dict[str, Any]] | None = None
    narrow: Callable[[Any, Arguments], Any] | None = None  # the part of the result that is shown
    code: Callable[[Any, Arguments], int] | None = None

    def function(self) -> Callable[..., "Result"]:
        module, name = self.verb.split(":")
        return getattr(import_module(module), name)

    def configure(self, parser: Parser) -> None:
        """Add an option for each parameter of the verb, and the options that all commands share."""
        verb = self.function()
        names = add_options(
            parser, verb, positional=self.positional, without=(*SUPPLIED, *self.hidden), own=self.own
        )
        taken = inspect.signature(verb).parameters
        if "engine" in taken:
            add_engine(parser, workers="workers" not in taken)
        if self.published is not None:
            text = "also show the paper's numbers (gray in figures)"
            parser.add_argument("--published", action="store_true", help=text)
        add_display(parser)
        if self.add is not None:
            self.add(parser)
        parser.set_defaults(command=self, names=names)

    def run(self, arguments: Arguments) -> int:
        verb = self.function()
        taken = inspect.signature(verb).parameters
        given = {name: getattr(arguments, name) for name in arguments.names}
        given |= {name: _single(given[name]) for name in self.positional}
        if any(given[name] == "" for name in self.positional):  # as a path it would be the current folder
            raise InputError("the name of the source is empty; use . for the current folder")
        if self.adjust is not None:
            given = self.adjust(given, arguments)
        options = {"published": self._published(arguments)} if getattr(arguments, "published", False) else {}
        with ExitStack() as stack:
            if "progress" in taken:
                from normgrowth.report.terminal.console import Progress

                given["progress"] = stack.enter_context(Progress(of_bytes=self.counts_bytes))
            if "engine" in taken:
                given["engine"] = stack.enter_context(engine_of(arguments, processes=self.processes))
            result = verb(**given)
        display = {name: getattr(arguments, name) for name in self.display}
        display |= options if self.shows_published else {}
        shown = self.narrow(result, arguments) if self.narrow is not None else result
        show_result(arguments, shown, {**self.shown, **display})
        if arguments.out and self.draws:
            draw_figures(arguments, result, **options)
        elif arguments.out:
            print(f"records: {arguments.out}", file=sys.stderr if arguments.json else sys.stdout)
        return self.code(result, arguments) if self.code is not None else 0

    def _published(self, arguments: Arguments) -> "Result":
        assert self.published is not None
        result = self.published(arguments)
        if not arguments.out and not self.shows_published:
            raise InputError("--published needs an output folder for the figures: add -o DIR")
        return result


@dataclass(frozen=True)
class Action:
    """A command that is more than one call of a verb: `action` does all of its work."""

    summary: str
    description: str
    examples: str
    configure_options: Callable[[Parser], None]
    action: Callable[[Arguments], int]
    resumes: bool | str = False

    def configure(self, parser: Parser) -> None:
        self.configure_options(parser)
        parser.set_defaults(command=self)

    def run(self, arguments: Arguments) -> int:
        return self.action(arguments)


def show_result(arguments: Arguments, result: "Result", display: Mapping[str, Any] | None = None) -> None:
    """Print the result: a table, or everything as JSON with --json."""
    from normgrowth.report.renderers import show

    if arguments.json:
        more = {"published": published.to_json()} if (published := (display or {}).get("published")) else {}
        json.dump({**result.to_json(), **more}, sys.stdout)
        print()
    else:
        show(result, wide=arguments.wide, **(display or {}))


def draw_figures(arguments: Arguments, result: "Result", **options: Any) -> None:
    """Write the figures of the result into its folder."""
    from normgrowth.report.renderers import draw

    say_paths(arguments, draw(result, Path(arguments.out) / "figures", **options))


def say_paths(arguments: Arguments, paths: Sequence[Path]) -> None:
    """Print the paths of written files; on stderr if stdout is JSON."""
    for path in paths:
        print(path, file=sys.stderr if arguments.json else sys.stdout)


def engine_of(arguments: Arguments, *, processes: bool) -> Any:
    """The engine that the options choose, as a context manager."""
    from normgrowth.engine.select import chosen

    return chosen(arguments.engine, arguments.ray_address, arguments.workers, processes=processes)


def add_display(parser: Parser) -> None:
    """Add the options that control how a result is printed."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    wide = "print all columns, even beyond 100 characters, and all sentences"
    parser.add_argument("--wide", action="store_true", help=wide)


def add_engine(parser: Parser, *, workers: bool = True) -> None:
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="where the work runs [local]"
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="address of a Ray cluster: host:port, ray://host:port or auto [start a local one]",
    )
    if workers:
        parser.add_argument("--workers", type=positive, metavar="N", help="number of workers [all cores]")


def _single(value: Any) -> Any:
    """The only item of a list of one item, since verbs take one source or a list; other values are unchanged."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value
