"""Errors as they are sent from a worker to its driver, and which of them are mistakes in this package."""

import json
import pickle
from fractions import Fraction
from pathlib import Path

import pytest

from normgrowth import errors
from normgrowth.checkpoints.parameters.selection import NothingCounts, Selection
from normgrowth.errors import InputError, is_mistake, raised_here
from normgrowth.lab.training_loop import Diverged
from normgrowth.network.heads.statistics import NotFinite
from normgrowth.paper.evidence import MissingEvidence

EVERY = [
    errors.InputError("x.pt: truncated"),
    errors.FolderLocked(Path("out")),
    errors.FolderMismatch(
        Path("out"), {"kind": "trace", "scope": "all"}, {"kind": "trace", "scope": "blocks"}
    ),
    errors.CheckpointChanged(Path("out"), "x.pt", 3),
    errors.UnscalableParameter("a.weight", "packed", "unpack it"),
    errors.RecordsMismatch(Path("out")),
    errors.SchemaError("records.json", "steps[0]", "a number is expected", "run again"),
    errors.AmbiguousRows("norm", "layer", "step", ["seed", "scale"]),
    errors.MissingDependency("polars", "pip install polars"),
    errors.TooFewPoints(4, 11),
    errors.UnsupportedDtype("x.pt", "a.weight", "C64"),
    errors.DamagedTensor("x.data-00000-of-00001", "a.weight"),
    errors.UnsupportedOperation("aten.i0.default", "a", [Fraction(1), None]),
    errors.NoLimit("aten.exp.default", "a", [None], parameters=["a.b", "c"]),
    errors.FileChanged("x.pt", "was truncated"),
    errors.ConfigError("config.json", "num_attention_heads", 15, "does not divide 32"),
    errors.RanksDiffer("a.weight", 1),
    MissingEvidence("scaling", "it did not run"),
    NothingCounts("run", Selection("blocks"), 4, {"--include all": 4}),
]


def test_every_kind_of_input_error_is_tried():
    def kinds(kind):
        return {kind, *(below for direct in kind.__subclasses__() for below in kinds(direct))}

    # a line and no fields
    plain = {NotFinite, Diverged, errors.NoTensors, errors.TensorMismatch, errors.SharedStep}
    known = {kind for kind in kinds(InputError) if kind.__module__.startswith("normgrowth.")}
    assert {type(error) for error in EVERY} == known - plain


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_it_was_sent(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def code_of_this_package(text):
    """A function in a module of the package."""
    space = {"__name__": "normgrowth.made_up", "json": json}
    exec(f"def function():\n    {text}", space)
    return space["function"]


@pytest.mark.parametrize(
    ("text", "here", "mistake"),
    [
        ("None.name", True, True),
        ("[][0]", True, True),
        ("raise ValueError", True, False),  # about a value, which may have been given
        ("json.loads(3)", False, False),
        ("json.loads('{')", False, False),
    ],
)
def test_where_an_error_was_raised(text, here, mistake):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        code_of_this_package(text)()
    assert (raised_here(caught.value), is_mistake(caught.value)) == (here, mistake)


def test_messages_are_printable_whatever_they_quote():
    error = InputError("class \x00orch.Storage\x1b[2J,\n\u3000\u202eabc")
    assert str(error) == r"class \x00orch.Storage\x1b[2J,\n\u3000\u202eabc"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
