"""Every list of tensors is in natural order: layer 2 before layer 10."""

import re

import pytest
from synthetic_series import walk, write_series

import normgrowth as ng
from normgrowth.text import natural_order

LAYERS = 12


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Files whose tensors are in alphabetical order, as safetensors writes them."""
    return write_series(tmp_path_factory.mktemp("order") / "series", walk(6, layers=LAYERS))


@pytest.fixture(scope="module")
def traced(series):
    return ng.trace(series)


def layers(names):
    return [int(found[1]) for name in names if (found := re.search(r"\.h\.(\d+)\.", name))]


def in_order(names):
    found = layers(names)
    return len(found) >= LAYERS and found == sorted(found)


def test_numbers_ascend_and_words_stay_where_they_first_occur():
    names = ["wte", "h.10.ln", "h.10.attn", "h.2.attn", "h.2.ln", "h.2", "ln_f", "h.010.mlp", "2.x", "10.x"]
    assert natural_order(names) == [
        *("wte", "h.2.ln", "h.2.attn", "h.2", "h.10.ln", "h.10.attn", "h.010.mlp", "ln_f", "2.x", "10.x")
    ]


def test_numbers_may_be_longer_than_int_accepts():
    digits = "1" * 5000
    assert natural_order([f"h.{digits}2", f"h.{digits}1", "h.²", "h.3"]) == [
        *("h.3", f"h.{digits}1", f"h.{digits}2", "h.²")
    ]


def test_parameters(series):
    assert in_order([parameter.name for parameter in ng.parameters(series)])


def test_matrix(traced):
    grid = traced.matrix("norm", by="tensor")
    assert in_order(grid.names)
    rows = traced.records.where(level="tensor", quantity="norm")
    for name in grid.names:  # values move with their names
        assert grid.curve(name).tolist() == rows.where(name=name).table["value"].to_pylist()


def test_fit(traced):
    fits = ng.fit(traced, level="tensor", laws=["sqrt"], bootstrap=0)
    assert in_order(fits.series)
    assert in_order(re.findall(r"^transformer\S+", str(fits), re.MULTILINE))


def test_compare_also_with_a_renamed_tensor(traced, tmp_path):
    import pyarrow as pa

    old, new = "transformer.h.2.mlp.c_fc.weight", "transformer.h.2.mlp.up.weight"
    rows = traced.records.table.to_pylist()
    changed = [{**row, "name": new} if row["name"] == old else row for row in rows]
    other = ng.Records(pa.Table.from_pylist(changed, traced.records.table.schema))
    found = ng.compare(traced, other)
    assert found.alignment.renamed == {old: new}
    assert in_order(found.alignment.names)
    assert in_order(found.matrix("weights_after", by="tensor", run="difference").names)


def test_lint(tmp_path):
    states = walk(6, layers=LAYERS)
    for name in states[3]:
        if name.endswith("c_proj.weight"):
            states[3][name][0, 0] = float("nan")
    findings = [finding.name for finding in ng.lint(write_series(tmp_path / "series", states))]
    assert in_order([name for name in findings if name])
