"""PyTorch's files: every usual wrapping, every way to be saved, and what must never run."""

import argparse
import json
import os
import pickle
import warnings
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from synthetic_series import tiny_state

from normgrowth.checkpoints.checkpoint import MappedCheckpoint, Strided, without_wrappers
from normgrowth.checkpoints.formats.pytorch import read_pytorch, read_pytorch_sharded
from normgrowth.checkpoints.local_files import find_checkpoints
from normgrowth.checkpoints.series import open_source
from normgrowth.errors import InputError


def optimizer_state():
    return {
        "state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(5.0)}},
        "param_groups": [{"lr": 0.1}],
    }


WRAPPINGS = {
    "plain": lambda state: state,
    "ordered": OrderedDict,
    "model": lambda state: {"model": state, "optimizer": optimizer_state(), "global_step": 40},
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model_state_dict": lambda state: {"model_state_dict": state, "optimizer_state_dict": optimizer_state()},
    "module": lambda state: {"module": state, "optimizer": optimizer_state(), "lr_scheduler": {"x": 1}},
    "lightning": lambda state: {
        "epoch": 1,
        "global_step": 40,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": {f"model.{name}": t for name, t in state.items()},
        "optimizer_states": [optimizer_state()],
        "lr_schedulers": [],
        "callbacks": {"ModelCheckpoint": {"best": torch.tensor(1.0)}},
    },
    "nested": lambda state: {
        "checkpoint": {"model": state},
        "rng": {"cpu": torch.ones(9, dtype=torch.uint8)},
    },
    "compiled": lambda state: {"model": {f"_orig_mod.{name}": t for name, t in state.items()}},
    "ddp": lambda state: {f"module.{name}": t for name, t in state.items()},
    "ddp compiled": lambda state: {f"module._orig_mod.{name}": t for name, t in state.items()},
    "deepspeed": lambda state: {"module": {f"_forward_module.{name}": t for name, t in state.items()}},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_the_weights_are_found_in_every_usual_wrapping(tmp_path, wrapping):
    state = tiny_state()
    torch.save(WRAPPINGS[wrapping](state), tmp_path / "a.pt")
    (unit,) = find_checkpoints(tmp_path / "a.pt")
    checkpoint = unit.open()
    prefix = "model." if wrapping == "lightning" else ""
    assert set(checkpoint.tensors) == {prefix + name for name in state}
    for name, tensor in state.items():
        np.testing.assert_array_equal(
            checkpoint.dense(prefix + name).view(np.float32), tensor.numpy().ravel()
        )
    assert checkpoint.step == (40 if wrapping in ("model", "lightning") else None)


def test_parts_beside_each_other_stay_together(tmp_path):
    parts = {"encoder": tiny_state(1), "decoder": tiny_state(2)}
    for i, content in enumerate([{**parts, "optimizer": optimizer_state()}, {"model": parts, "step": 3}]):
        torch.save(content, tmp_path / f"{i}.pt")
        names = set(read_pytorch(tmp_path / f"{i}.pt").tensors)
        assert names == {f"{part}.{name}" for part, state in parts.items() for name in state}


def test_tensors_beside_a_wrapping_are_no_weights(tmp_path):
    content = {
        "model": tiny_state(),
        "ema": tiny_state(1),
        "torch_rng_state": torch.get_rng_state(),
        "loss_history": torch.ones(50),
        "step": 100,
    }
    torch.save(content, tmp_path / "a.pt")
    checkpoint = read_pytorch(tmp_path / "a.pt")
    assert set(checkpoint.tensors) == set(tiny_state())
    assert checkpoint.step == 100


def test_a_module_whose_name_begins_like_optimizer_counts(tmp_path):
    torch.save({"optimus.weight": torch.ones(3, 3), "scaler.weight": torch.ones(2, 2)}, tmp_path / "a.pt")
    assert set(read_pytorch(tmp_path / "a.pt").tensors) == {"optimus.weight", "scaler.weight"}


def test_negated_views_and_tensors_without_values(tmp_path):
    base = torch.randn(4, 3)
    torch.save({"w": torch._neg_view(base)}, tmp_path / "a.pt")
    np.testing.assert_array_equal(
        read_pytorch(tmp_path / "a.pt").dense("w").view(np.float32), -base.numpy().ravel()
    )
    torch.save({"w": torch.empty(3, device="meta")}, tmp_path / "b.pt")
    with pytest.raises(InputError, match="without values"):
        read_pytorch(tmp_path / "b.pt")


def test_the_format_is_found_by_content_and_not_by_name(tmp_path):
    torch.save(tiny_state(), tmp_path / "weights.model")
    (unit,) = find_checkpoints(tmp_path)
    assert unit.format == "pytorch"
    from safetensors.torch import save_file

    save_file(tiny_state(), tmp_path / "b.pt")
    assert {unit.format for unit in find_checkpoints(tmp_path)} == {"pytorch", "safetensors"}


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.float8_e4m3fn]
)
def test_dtypes(tmp_path, dtype):
    tensor = torch.randn(4, 3).to(dtype)
    torch.save({"w": tensor}, tmp_path / "a.pt")
    (_, _, values) = next(iter(_series(tmp_path / "a.pt")))
    np.testing.assert_array_equal(values, tensor.double().numpy())


def _series(path):
    from normgrowth import open_source

    return open_source(path)


def test_strides_gaps_and_parameters(tmp_path):
    base = torch.randn(6, 8)
    state = {
        "transposed": base.t(),
        "sliced": base[:, ::2],
        "offset": base[2:4],
        "expanded": torch.randn(1, 4).expand(5, 4),
        "permuted": torch.randn(2, 3, 4).permute(2, 0, 1),
        "parameter": torch.nn.Parameter(torch.randn(3)),
    }
    torch.save(state, tmp_path / "a.pt")
    checkpoint = read_pytorch(tmp_path / "a.pt")
    assert checkpoint.tensors["transposed"].layout == Strided((1, 8))
    assert checkpoint.tensors["sliced"].layout is None
    for name, tensor in state.items():
        values = checkpoint.dense(name).view(np.float32).reshape(tensor.shape)
        np.testing.assert_array_equal(values, tensor.detach().numpy())


def test_tied_tensors_are_known(tmp_path):
    shared = torch.randn(5, 4)
    torch.save({"wte.weight": shared, "lm_head.weight": shared, "other": shared[1:]}, tmp_path / "a.pt")
    checkpoint = read_pytorch(tmp_path / "a.pt")
    assert checkpoint.aliases == {"lm_head.weight": "wte.weight"}


def test_saved_on_another_device(tmp_path, monkeypatch):
    """A file that says cuda:3, made by naming the device in the pickle as torch itself would."""
    path = tmp_path / "cuda.pt"
    tensor = torch.randn(4)
    torch.save({"w": tensor}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    pickled = next(name for name in entries if name.endswith("data.pkl"))
    assert b"X\x03\x00\x00\x00cpu" in entries[pickled]
    entries[pickled] = entries[pickled].replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:3")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    np.testing.assert_array_equal(read_pytorch(path).dense("w").view(np.float32), tensor.numpy())


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_the_legacy_format_is_mapped_too(tmp_path, protocol):
    state = tiny_state()
    path = tmp_path / "old.pt"
    torch.save(state, path, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    checkpoint = read_pytorch(path)
    assert isinstance(checkpoint, MappedCheckpoint)
    for name, tensor in state.items():
        np.testing.assert_array_equal(checkpoint.dense(name).view(np.float32), tensor.numpy().ravel())


def test_mapped_files_take_no_memory(tmp_path):
    psutil = pytest.importorskip("psutil")
    torch.save({"w": torch.zeros(50_000_000)}, tmp_path / "big.pt")
    before = psutil.Process().memory_info()
    checkpoint = read_pytorch(tmp_path / "big.pt")
    (bits,) = checkpoint.pieces("w")
    assert bits.sum() == 0
    after = psutil.Process().memory_info()
    anonymous = (after.rss - after.shared) - (before.rss - before.shared)
    assert anonymous < 50e6 < bits.nbytes


def test_shards_with_an_index(tmp_path):
    state = tiny_state()
    names = list(state)
    torch.save({n: state[n] for n in names[:4]}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({n: state[n] for n in names[4:]}, tmp_path / "pytorch_model-00002-of-00002.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    shard = "pytorch_model-0000{}-of-00002.bin".format
    index.write_text(json.dumps({"weight_map": {n: shard(1 + (i >= 4)) for i, n in enumerate(names)}}))
    (unit,) = find_checkpoints(tmp_path)
    assert unit.format == "pytorch-index"
    checkpoint = read_pytorch_sharded(index)
    for name in names:
        np.testing.assert_array_equal(checkpoint.dense(name).view(np.float32), state[name].numpy().ravel())


# --- what must not run ------------------------------------------------------------------------


class Hostile:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickled_call_is_noted_and_does_not_run(tmp_path, legacy):
    target = tmp_path / "it-ran"
    torch.save(
        {"w": torch.ones(2), "x": Hostile(target)},
        tmp_path / "evil.pt",
        _use_new_zipfile_serialization=not legacy,
    )
    checkpoint = read_pytorch(tmp_path / "evil.pt")
    assert set(checkpoint.tensors) == {"w"}
    assert "without running code" in checkpoint.notes[0]
    assert "posix.system" in checkpoint.notes[0]
    assert not target.exists()


def test_a_plain_pickle_is_refused_and_does_not_run(tmp_path):
    target = tmp_path / "it-ran"
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Hostile(target)))
    with pytest.raises(InputError, match=r"evil\.pt"):
        read_pytorch(tmp_path / "evil.pt")
    assert not target.exists()


def test_an_unknown_class_is_read_as_data_and_named(tmp_path):
    path = tmp_path / "args.pt"
    torch.save({"model": {"w": torch.ones(2)}, "args": argparse.Namespace(lr=0.1)}, path)
    checkpoint = read_pytorch(path)
    assert set(checkpoint.tensors) == {"w"}
    assert "argparse.Namespace" in checkpoint.notes[0]


@pytest.mark.parametrize("cut", [0, 1, 100, 2000, -30])
def test_a_truncated_file(tmp_path, cut):
    path = tmp_path / "cut.pt"
    torch.save(tiny_state(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"cut\.pt") as error:
        read_pytorch(path)
    assert "\n" not in str(error.value)


def test_files_without_a_model(tmp_path):
    for i, content in enumerate(
        [{}, [1, 2], 3, {"optimizer": optimizer_state()}, {"epoch": torch.tensor(3)}]
    ):
        torch.save(content, tmp_path / f"{i}.pt")
        with pytest.raises(InputError, match="no tensors"):
            read_pytorch(tmp_path / f"{i}.pt")


@pytest.mark.filterwarnings("ignore:.*[Ss]parse.*")
def test_sparse_tensors_are_refused(tmp_path):
    torch.save({"w": torch.eye(3).to_sparse()}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="sparse"):
        read_pytorch(tmp_path / "a.pt")


def test_wrappers_leave_names_only_where_that_is_safe():
    assert without_wrappers(["a.weight", "b"]) is None
    assert without_wrappers(["module.a", "module.b"]) == {"a": "module.a", "b": "module.b"}
    assert without_wrappers(["module.a", "b"]) is None, "a part that is called module"
    assert without_wrappers(["x._orig_mod.w"]) == {"x.w": "x._orig_mod.w"}
    assert without_wrappers(["w", "_orig_mod.w"]) is None, "two names would become one"


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_model_saved_in_a_tuple_with_its_optimizer(tmp_path, kind):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    for content in (
        (optimizer.state_dict(), model.state_dict(), 5),
        (5, model),
        ({"net": model.state_dict()}, 5),
    ):
        torch.save(kind(content), tmp_path / "a.pt")
        checkpoint = read_pytorch(tmp_path / "a.pt")
        assert set(checkpoint.tensors) == {"weight", "bias"}
        values = checkpoint.dense("weight").view(np.float32)
        np.testing.assert_array_equal(values, model.weight.detach().numpy().ravel())


def test_a_traced_graph_module_is_read_like_its_state(tmp_path):
    """`torch.fx` pickles the attributes of such a module as an argument; the file had "no tensors of a model"."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    graph = torch.fx.symbolic_trace(model)
    torch.save({"model": graph, "step": 7}, tmp_path / "inside.pt")
    torch.save(graph, tmp_path / "graph.pt")
    for name in ("graph.pt", "inside.pt"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no step in its name
            found = {tensor: values for _, tensor, values in open_source(tmp_path / name)}
        expected = graph.state_dict()
        assert found.keys() == expected.keys()
        for tensor, values in found.items():
            np.testing.assert_array_equal(values, expected[tensor].double().numpy())
