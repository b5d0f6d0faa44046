"""Files in the place of weights that hold none: the error says what they are and what to do."""

import json
import pickle

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from normgrowth.checkpoints.foreign_files import foreign_kind
from normgrowth.checkpoints.series import open_source
from normgrowth.errors import InputError
from normgrowth.network.models.load import load_model

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 268435456\n"
KINDS = {
    "Git LFS": POINTER,
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "plain pickle": pickle.dumps({"a": 1}),
    "web page": b"\n<!DOCTYPE html><html>404</html>",
    "numpy": b"\x93NUMPY\x01\x00",
}


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth", "bin"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_names_what_a_file_is(tmp_path, kind, suffix):
    path = tmp_path / f"step_1.{suffix}"
    path.write_bytes(KINDS[kind])
    with pytest.raises(InputError, match=kind):
        open_source(path).entries[0].open()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "epoch_3.pt"])
def test_a_folder_of_pointers_says_so(tmp_path, name):
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / name).write_bytes(POINTER)
    with pytest.raises(InputError, match="Git LFS"):
        open_source(tmp_path).entries[0].open()


def test_shards_that_are_pointers(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "a.safetensors"}}))
    (tmp_path / "a.safetensors").write_bytes(POINTER)
    with pytest.raises(InputError, match=r"a\.safetensors: a Git LFS pointer"):
        open_source(tmp_path).entries[0].open()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_no_foreign_pickle(tmp_path):
    """Its `.metadata` is a pickle: the error is about what is wrong in it."""
    dcp.save({"layers.0.w": torch.ones(8, 8)}, checkpoint_id=str(tmp_path / "step_1"), no_dist=True)
    path = tmp_path / "step_1" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.state_dict_metadata["layers.0.w"].size = torch.Size([2**31, 2**31])
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(InputError, match=r"\.metadata: .*layers\.0\.w") as refused:
        open_source(tmp_path).entries[0].open()
    assert "torch.save" not in str(refused.value)


def test_weights_are_not_foreign(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    torch.save({"w": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert foreign_kind(tmp_path / "a.pt") == foreign_kind(tmp_path / "old.pt") == ""
    assert foreign_kind(tmp_path / "missing.pt") == ""


def test_a_model_whose_weights_are_pointers(tmp_path):
    config = {
        "model_type": "gpt2",
        "n_layer": 1,
        "n_head": 1,
        "n_embd": 8,
        "vocab_size": 16,
        "n_positions": 16,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(InputError, match="Git LFS"):
        load_model(tmp_path)


def test_an_index_of_tensorflow_without_its_data(tmp_path):
    (tmp_path / "ckpt-1.index").write_bytes(bytes.fromhex("57fb808b247547db"))
    with pytest.raises(InputError, match=r"no data file ckpt-1\.data-00000-of-00001"):
        open_source(tmp_path)


def test_numpy_alone_is_not_an_archive(tmp_path):
    np.save(tmp_path / "w.npy", np.ones(3))
    with pytest.raises(InputError, match=r"numpy\.savez"):
        open_source(tmp_path / "w.npy")
