"""The machine that runs nothing builds what Python's own builds, for every protocol and any plain value."""

import collections
import pickle
import pickletools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgrowth.checkpoints.formats.pickled.pickle_values import (
    SKIPPED,
    Entries,
    Global,
    RecordedCall,
    Stretch,
)
from normgrowth.checkpoints.formats.pickled.pickles import read_pickle, unpickle
from normgrowth.checkpoints.malformed import Malformed
from normgrowth.errors import InputError

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**2100), 2**2100)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner, max_size=5)
    ),
    max_leaves=40,
)


def rebuilt(value):
    """What a machine's value stands for."""
    if type(value) is Entries:
        return {rebuilt(key): rebuilt(inner) for key, inner in zip(value[::2], value[1::2], strict=True)}
    if type(value) in (list, tuple):
        return type(value)(map(rebuilt, value))
    if type(value) is RecordedCall:  # how protocols below 3 write bytes
        if value.name == "_codecs.encode":
            text, encoding = value.args
            return text.encode(encoding)
        assert value.name in ("builtins.bytes", "__builtin__.bytes")
        return b""
    return value


@given(plain, st.integers(0, 5))
def test_every_value_in_every_protocol(value, protocol):
    raw = pickle.dumps(value, protocol)
    found = read_pickle(raw + b"more")
    assert rebuilt(found.value) == value
    assert found.end == found.size == len(raw)


@given(plain, st.integers(2, 5))
def test_the_same_after_optimizing_the_memo(value, protocol):
    assert rebuilt(read_pickle(pickletools.optimize(pickle.dumps(value, protocol))).value) == value


names = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**600), 2**600) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(names, st.integers(2, 5))
def test_the_strict_machine_builds_the_value_itself(value, protocol):
    assert unpickle(pickle.dumps(value, protocol), "here", frozenset()) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_malformed(raw):
    for read in (read_pickle, lambda data: unpickle(data, "here", frozenset())):
        try:
            read(b"\x80\x04" + raw)
        except (Malformed, InputError) as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_every_opcode_of_python_is_known_or_refused_by_name():
    refused = []
    for opcode in pickletools.opcodes:
        try:
            read_pickle(opcode.code.encode("latin-1"))
        except Malformed as error:
            refused += [opcode.name] if "which checkpoints do not use" in str(error) else []
    assert refused == ["NEXT_BUFFER", "READONLY_BUFFER", "EXT1", "EXT2", "EXT4", "PERSID"]


def test_objects_are_names_arguments_state_and_entries():
    class Kind(dict):
        pass

    Kind.__module__, Kind.__qualname__ = __name__, "Kind"
    sys.modules.setdefault(__name__, type(sys)(__name__))
    sys.modules[__name__].Kind = Kind  # pyright: ignore[reportAttributeAccessIssue]
    value = Kind(a=1)
    value.attribute = 2
    for protocol in range(2, 6):
        made = read_pickle(pickle.dumps(value, protocol)).value
        assert (type(made), made.name, made.entries) == (RecordedCall, f"{__name__}.Kind", ["a", 1])
        assert made.state == ["attribute", 2]
    assert read_pickle(pickle.dumps(collections.OrderedDict(a=1))).value == ["a", 1]
    found = read_pickle(pickle.dumps(len))
    assert (type(found.value), found.value, found.names) == (Global, "builtins.len", {"builtins.len"})


def test_sets_and_long_values():
    for protocol in range(6):
        (items,) = read_pickle(pickle.dumps({"a"}, protocol)).value.args
        assert items == ["a"]
        data = pickle.dumps(["x" * 100_000, b"y" * 100_000], protocol)
        text, raw = read_pickle(data).value
        raw = raw.args[0] if type(raw) is RecordedCall and raw is not SKIPPED else raw
        for long, value in ((text, b"x"), (raw, b"y")):
            if protocol == 0:
                assert long is SKIPPED
            else:
                assert type(long) is Stretch
                assert data[long.start : long.start + long.size] == value * 100_000
    assert read_pickle(b"S'abc'\n.").value == "abc"  # Python 2
    assert read_pickle(b"U\x03abc.").value == "abc"


def test_names_and_keys_are_short():
    with pytest.raises(InputError, match="keys"):
        unpickle(pickle.dumps({"x" * 5000: 1}), "here", frozenset())
    with pytest.raises(InputError, match="keys"):
        unpickle(pickle.dumps({2**70: 1}), "here", frozenset())
