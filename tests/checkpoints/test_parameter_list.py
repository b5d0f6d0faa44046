"""`parameters` lists every tensor, typed, and gives it back from disk."""

import pytest
from synthetic_series import tiny_state, walk, write_series

import normgrowth as ng
from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.errors import InputError

QKV = "transformer.h.1.attn.c_attn.weight"


@pytest.fixture
def series(tmp_path):
    return write_series(tmp_path / "series", walk(2))


def test_every_tensor_is_listed(series):
    found = ng.parameters(series, exclude=r"\.h\.0\.")
    assert [parameter.name for parameter in found] == sorted(tiny_state())
    by_name = {parameter.name: parameter for parameter in found}
    own = by_name[QKV]
    assert (own.layer, own.layer_name, own.role, own.kind) == (1, "layer.1", "attention.qkv", "parameter")
    assert own.shape == tuple(tiny_state()[QKV].shape)
    assert own.dtype == "F32"
    assert own in found.counted
    assert not by_name[QKV.replace("h.1", "h.0")].counted
    assert by_name["transformer.wte.weight"].layer_name == ""
    assert found.step == 0
    assert len(found.to_pandas()) == len(found) == 12


def test_saved_and_loaded(series, tmp_path):
    found = ng.parameters(series, include="all")
    again = ng.load(found.save(tmp_path / "out"))
    assert isinstance(again, ng.Parameters)
    assert again.parameters == found.parameters
    assert again.selection == Selection("all")
    assert str(again) == str(found)
    assert "12 of 12 tensors are counted" in str(found)


def test_a_choice_that_does_not_exist_is_named(series):
    with pytest.raises(InputError, match="include 'some'"):
        ng.parameters(series, include="some")
