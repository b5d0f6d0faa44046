"""PyTorch files are read to the bit as torch.load reads them."""

import argparse
import datetime
import enum
import pathlib
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from synthetic_series import tiny_state
from tiny_configs import tiny_config
from torch import nn

from normgrowth import open_source, trace
from normgrowth.checkpoints.formats.pytorch import read_pytorch
from normgrowth.errors import SeriesWarning

FORMATS = {
    "archive": {},
    "legacy": dict(_use_new_zipfile_serialization=False),
    "legacy, protocol 1": dict(_use_new_zipfile_serialization=False, pickle_protocol=1),
    "legacy, protocol 4": dict(_use_new_zipfile_serialization=False, pickle_protocol=4),
    "protocol 4": dict(pickle_protocol=4),
    "protocol 5": dict(pickle_protocol=5),
}


def bits(tensor):
    return tensor.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()


def assert_same(path, expected):
    checkpoint = read_pytorch(path)
    assert list(checkpoint.tensors) == list(expected)
    for name, tensor in expected.items():
        assert checkpoint.tensors[name].shape == tuple(tensor.shape), name
        np.testing.assert_array_equal(checkpoint.dense(name).view(np.uint8), bits(tensor), name)
    return checkpoint


def one_of_each():
    base = torch.randn(6, 8)
    state = {
        "plain": torch.randn(5, 3),
        "transposed": base.t(),
        "part": base[2:4],
        "row": base[3],
        "columns": base[:, 2:5],
        "every second": base[::2],
        "expanded": torch.randn(1, 4).expand(5, 4),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
        "number": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "empty view": base[:0],
        "parameter": nn.Parameter(torch.randn(3)),
        "negated": torch._neg_view(base),
    }
    kinds = "float64 float32 bfloat16 float16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool"
    for kind in kinds.split():
        state[kind] = (4 * torch.randn(7, 3)).to(getattr(torch, kind))
    return state


@pytest.mark.parametrize("how", FORMATS)
def test_tensors_of_every_kind(tmp_path, how):
    state = one_of_each()
    if "legacy" in how:  # which torch cannot write there
        state = {name: t for name, t in state.items() if "float8" not in name}
    torch.save(state, tmp_path / "a.pt", **FORMATS[how])
    loaded = torch.load(tmp_path / "a.pt", weights_only=False)  # which takes other protocols, too
    assert_same(tmp_path / "a.pt", loaded)


def test_unsigned_integers(tmp_path):
    state = {str(kind): torch.arange(6).to(kind) for kind in (torch.uint16, torch.uint32, torch.uint64)}
    torch.save(state, tmp_path / "a.pt")
    assert_same(tmp_path / "a.pt", state)


class Color(enum.Enum):
    RED = 1


@dataclass
class TrainingConfig:
    rate: float = 0.1


def training_state(state):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "state_dict": state,
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [{"last_epoch": 3}],
        "hyper_parameters": argparse.Namespace(lr=0.1, path=pathlib.Path("a/b")),
        "callbacks": {
            "Checkpoint{'monitor': None}": {"best": torch.tensor(1.0), "when": datetime.datetime.now()}
        },
        "loss": np.float64(2.5),
        "history": np.arange(1000.0),
        "color": Color.RED,
        "config": TrainingConfig(),
        "counts": Counter("abc"),
        "by key": defaultdict(list, {(1, 2): [3]}),
        "rng": {"numpy": np.random.default_rng(0).bit_generator.state, "torch": torch.get_rng_state()},
        "what": {1, 2},
        "bytes": b"123" * 50_000,
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "global_step": np.int64(1234),
    }


@pytest.mark.parametrize("how", FORMATS)
def test_whatever_lies_next_to_the_weights(tmp_path, how):
    state = OrderedDict(tiny_state())
    torch.save(training_state(state), tmp_path / "a.ckpt", **FORMATS[how])
    checkpoint = assert_same(tmp_path / "a.ckpt", state)
    assert checkpoint.step == 1234
    (note,) = checkpoint.notes
    assert "argparse.Namespace" in note
    assert "TrainingConfig" in note
    assert "weights_only" not in note


def test_classes_that_are_plain_data_are_not_mentioned(tmp_path):
    content = {"model": tiny_state(), "loss": np.float64(2.5), "when": datetime.date.today(), "set": {1}}
    torch.save(content, tmp_path / "a.pt")
    assert read_pytorch(tmp_path / "a.pt").notes == ()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source")
def test_a_whole_module(tmp_path, how, wrapped):
    model = nn.Sequential(nn.Embedding(5, 4), nn.TransformerEncoderLayer(4, 2), nn.BatchNorm1d(4))
    model[2].register_buffer("hidden", torch.ones(3), persistent=False)
    torch.save({"model": model, "epoch": 1} if wrapped else model, tmp_path / "a.pt", **FORMATS[how])
    checkpoint = assert_same(tmp_path / "a.pt", model.state_dict())
    assert checkpoint.notes == ()


def test_a_module_that_is_used_twice(tmp_path):
    part = nn.Linear(4, 4)
    model = nn.Sequential(part, part)
    torch.save(model, tmp_path / "a.pt")
    assert assert_same(tmp_path / "a.pt", model.state_dict()).aliases == {
        "1.weight": "0.weight",
        "1.bias": "0.bias",
    }


@pytest.mark.filterwarnings("ignore")
def test_torchscript(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    torch.jit.script(model).save(str(tmp_path / "a.pt"))
    checkpoint = read_pytorch(tmp_path / "a.pt")
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(checkpoint.dense(name).view(np.uint8), bits(tensor))


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "llama"])
@pytest.mark.parametrize("how", ["archive", "legacy"])
def test_models_of_transformers(tmp_path, family, how):
    from transformers import AutoModel

    state = AutoModel.from_config(tiny_config(family)).state_dict()
    torch.save(state, tmp_path / "pytorch_model.bin", **FORMATS[how])
    checkpoint = assert_same(tmp_path / "pytorch_model.bin", state)
    places = [t.data_ptr() for t in state.values()]
    assert len(checkpoint.aliases) == len(places) - len(set(places))


def packaged():
    """Files of torch that lie in installed packages."""
    import torchmetrics

    folder = pathlib.Path(torchmetrics.__file__).parent / "functional" / "image"
    return sorted(folder.glob("*_models/*.pt*"))


def test_files_inside_packages():
    files = packaged()
    assert files
    for path in files:
        assert_same(path, torch.load(path, map_location="cpu", weights_only=True))


def test_sums_where_values_are_not_aligned(tmp_path):
    """Storages of the legacy format begin wherever their pickles end."""
    states = [tiny_state(seed) for seed in range(2)]
    for kind, how in {"archive": {}, "legacy": FORMATS["legacy"]}.items():
        (tmp_path / kind).mkdir()
        for i, state in enumerate(states):
            torch.save(state, tmp_path / kind / f"step_{i}.pt", **how)
    records = [trace(tmp_path / kind, lint=False).records for kind in ("archive", "legacy")]
    starts = [p[0].offset % 4 for p in read_pytorch(tmp_path / "legacy" / "step_0.pt").ranges.values()]
    assert any(starts)
    norms = [record.where(quantity="norm", level="tensor").table["value"].to_pylist() for record in records]
    assert norms[0] == norms[1]


def test_a_trace_tells_what_was_passed_over_once(tmp_path):
    for i in range(3):
        content = {"model": tiny_state(i), "args": argparse.Namespace(lr=0.1)}
        torch.save(content, tmp_path / f"step_{i}.pt")
    with pytest.warns(SeriesWarning) as caught:
        result = trace(tmp_path, lint=False)
    told = [str(w.message) for w in caught if "argparse.Namespace" in str(w.message)]
    assert len(told) == 1
    assert told[0] in result.notes
    assert len(open_source(tmp_path)) == 3
