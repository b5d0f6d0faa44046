"""The registry of formats and the check of paths, on names alone."""

import pytest

from normgrowth.checkpoints.formats.registry import FORMATS, format_of_file, format_of_name, without_suffix
from normgrowth.checkpoints.safe_paths import stays_below


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("model.safetensors", "safetensors"),
        ("model.safetensors.index.json", "safetensors-index"),
        ("pytorch_model.bin.index.json", "pytorch-index"),
        ("step_1.pt", "pytorch"),
        ("last.ckpt", "pytorch"),
        ("model.ckpt-5.index", "tensorflow"),
        ("other.index", None),
        ("arrays.npz", None),  # only where a person names it on this machine
        ("config.json", None),
    ],
)
def test_a_format_by_its_name(name, format):
    assert format_of_name(name, [name, "model.ckpt-5.data-00000-of-00001"]) == format


def test_which_formats_are_read_by_ranges():
    by_ranges = {name for name, row in FORMATS.items() if row.by_ranges}
    assert by_ranges == {"safetensors", "safetensors-index", "tensorflow"}


def test_a_damaged_file_is_what_it_is_named(tmp_path):
    for name, format in [
        ("a.safetensors", "safetensors"),
        ("a.pt", "pytorch"),
        ("a.ckpt", None),
        ("a", None),
    ]:
        (tmp_path / name).write_bytes(b"nothing")
        assert format_of_file(tmp_path / name) == format


def test_a_name_without_its_suffix():
    names = [
        "step_1.safetensors",
        "step_1.pth",
        "step_1.bin.index.json",
        "step_1.index",
        "step_1.5",
        "step_1",
    ]
    assert [without_suffix(name) for name in names] == ["step_1"] * 4 + ["step_1.5", "step_1"]


@pytest.mark.parametrize("name", ["a.pt", "a/b.pt", "notes: x.md", "ü/b c.pt", "a..b"])
def test_paths_below(name):
    assert stays_below(name)


@pytest.mark.parametrize("name", ["", ".", "../a", "a/../b", "/a", "a//b", "C:a", "a\\..\\b", "a\n", "a\0"])
def test_paths_elsewhere(name):
    assert not stays_below(name)
