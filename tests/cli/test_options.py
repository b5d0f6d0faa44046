"""Options are made from signatures: every parameter of a verb has one, with help, and reaches the verb."""

import argparse
import inspect
from collections.abc import Sequence
from typing import Literal

import pytest

from normgrowth.cli.command import SUPPLIED, Command
from normgrowth.cli.main import COMMANDS, command_of, main, overview, parser_of
from normgrowth.cli.options import Option, add_options

DECLARED = [name for name in COMMANDS if isinstance(command_of(name), Command)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_two_examples(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    assert said.count(f"normgrowth {name} ") >= 2
    assert max(map(len, said.splitlines())) <= 100
    assert "(default" not in said  # defaults are in brackets
    assert command_of(name).summary in overview()
    assert max(map(len, overview().splitlines())) <= 100


@pytest.mark.parametrize("name", DECLARED)
def test_every_parameter_of_the_verb_can_be_given(name):
    command = command_of(name)
    parser = parser_of(name)
    known = {action.dest for action in parser._actions}
    for parameter in inspect.signature(command.function()).parameters:
        assert parameter in known or parameter in (*SUPPLIED, *command.hidden), parameter
    for action in parser._actions:
        assert action.help, f"{action.dest} has no help"


def verb(
    source: str,
    *,
    count: int = 3,
    lags: Sequence[int] = (),
    pair: tuple[float, float] = (0.5, 1.0),
    name: str | None = None,
    mode: Literal["fast", "exact"] = "exact",
    first: bool = True,
    strict: bool = False,
) -> None: ...


def parsed(*words):
    parser = argparse.ArgumentParser()
    names = ("source", "count", "lags", "pair", "name", "mode", "first", "strict")
    add_options(parser, verb, positional=("source",), own={name: Option("help") for name in names})
    return vars(parser.parse_args(words))


def test_defaults_are_those_of_the_signature():
    found = parsed("x")
    assert found == {
        "source": "x",
        **{k: p.default for k, p in inspect.signature(verb).parameters.items() if k != "source"},
    }


def test_types_come_from_annotations():
    found = parsed(
        "x",
        "--count",
        "4",
        "--lags",
        "1,10",
        "--pair",
        "0.9,0.99",
        "--mode",
        "fast",
        "--no-first",
        "--strict",
    )
    assert found["count"] == 4
    assert found["lags"] == (1, 10)
    assert found["pair"] == (0.9, 0.99)
    assert found["mode"] == "fast"
    assert found["first"] is False
    assert found["strict"] is True


@pytest.mark.parametrize("words", [("--count", "x"), ("--lags", "1,b"), ("--pair", "1"), ("--mode", "slow")])
def test_values_of_another_type_are_refused(words):
    with pytest.raises(SystemExit):
        parsed("x", *words)


def test_a_parameter_without_help_is_an_error():
    with pytest.raises(AssertionError, match="count"):
        add_options(argparse.ArgumentParser(), verb, positional=("source",))


def test_an_unknown_command_is_named(capsys):
    assert main(["traec"]) == 2
    assert "did you mean trace?" in capsys.readouterr().err
