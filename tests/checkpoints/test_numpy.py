"""numpy arrays as weights: inside PyTorch files, and in numpy's own archives."""

import zipfile

import numpy as np
import pytest
import torch

from normgrowth.checkpoints.formats.npz import read_npz
from normgrowth.checkpoints.formats.pytorch import read_pytorch
from normgrowth.checkpoints.series import open_source
from normgrowth.errors import FileChanged, InputError
from tests.torch_files import archive, call, dictionary, many, name, number, text

RNG = np.random.default_rng(0)
LARGE = RNG.normal(size=(300, 200)).astype(np.float32)  # more than a pickle's values that are copied
WEIGHTS = {
    "layers.0.weight": LARGE,
    "layers.0.bias": np.zeros(5, np.float32),
    "layers.1.bias": np.zeros(5, np.float32),
    "transposed": np.asfortranarray(RNG.normal(size=(170, 90))),
    "small": np.asfortranarray(RNG.normal(size=(7, 9))),
    "half": RNG.normal(size=(3, 4, 5)).astype(np.float16),
    "empty": np.zeros((0, 3), np.float32),
    "count": np.arange(6).reshape(2, 3),
}
NOT_READ = {
    "objects": np.array([None, {}], object),
    "big_endian": np.ones((3, 3), ">f4"),
    "complex": np.ones((3, 3), complex),
}


def assert_holds(checkpoint, weights):
    assert set(checkpoint.tensors) == set(weights)
    for key, value in weights.items():
        assert checkpoint.tensors[key].shape == value.shape
        np.testing.assert_array_equal(checkpoint.dense(key).view(value.dtype).reshape(value.shape), value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("legacy", [False, True])
def test_arrays_in_a_pytorch_file_are_its_weights(tmp_path, protocol, legacy):
    content = {"model": WEIGHTS | NOT_READ | {"tied": LARGE}, "step": 7}
    path = tmp_path / "a.pt"
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=not legacy)
    checkpoint = read_pytorch(path)
    assert checkpoint.step == 7
    assert checkpoint.aliases == {"tied": "layers.0.weight"}
    assert all(key in checkpoint.notes[0] for key in NOT_READ)
    assert_holds(checkpoint, WEIGHTS | {"tied": LARGE})


def test_arrays_next_to_tensors_are_no_weights(tmp_path):
    torch.save({"w": torch.ones(3, 3), "losses": np.ones((3, 3))}, tmp_path / "a.pt")
    assert set(read_pytorch(tmp_path / "a.pt").tensors) == {"w"}


@pytest.mark.parametrize("log", [np.ones(100), np.ones((4, 5), np.int64), np.ones((2, 2), object)])
def test_arrays_that_are_no_matrices_of_real_numbers_are_no_model(tmp_path, log):
    torch.save({"log": log}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="no tensors"):
        read_pytorch(tmp_path / "a.pt")


FLOATS = call(name("numpy", "dtype"), text("f4"))
RAW = b"B" + (24).to_bytes(4, "little") + bytes(24)


def made(shape, raw=RAW, dtype=FLOATS):
    begun = call(name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"))
    return begun + many(number(1), shape, dtype, b"\x89", raw) + b"b"


def shaped(*sizes):
    return many(*map(number, sizes))


LIES = {
    "more values than bytes": made(shaped(2**20, 2**20)),
    "fewer values": made(shaped(2, 2)),
    "a negative size": made(shaped(-2, -3)),
    "a shape that is a number": made(number(6)),
    "too many axes": made(shaped(6, *[1] * 40)),
    "text for bytes": made(shaped(2, 3), text("x" * 24)),
    "text that is no bytes": made(
        shaped(2, 3), call(name("_codecs", "encode"), text("é" * 23 + "→"), text("latin1"))
    ),
    "no bytes": made(shaped(2, 3), b"N"),
    "many of one text": dictionary(
        a=made(shaped(1 << 20, 16), b"X" + (1 << 26).to_bytes(4, "little") + b"a" * (1 << 26))
    ),
}


def test_an_array_made_by_hand_is_such_as_numpy_makes(tmp_path):
    assert_holds(
        read_pytorch(archive(tmp_path / "a.pt", dictionary(w=made(shaped(2, 3))))),
        {"w": np.zeros((2, 3), np.float32)},
    )


@pytest.mark.parametrize("kind", LIES)
def test_arrays_that_lie_are_refused(tmp_path, kind):
    with pytest.raises(InputError, match=r"a\.pt"):
        read_pytorch(archive(tmp_path / "a.pt", dictionary(good=made(shaped(2, 3)), w=LIES[kind])))


def test_one_text_may_not_be_the_values_of_many_arrays(tmp_path):
    side = 1 << 12
    encoded = call(name("_codecs", "encode"), text("a" * side * 16), text("latin1"))
    first = made(shaped(side, 4), encoded + b"q\x01")
    others = {f"w{i}": made(shaped(side, 4), b"h\x01") for i in range(2000)}
    with pytest.raises(InputError, match="refer to the same bytes"):
        read_pytorch(archive(tmp_path / "a.pt", dictionary(w=first, **others)))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_numpy_archives(tmp_path, save):
    path = tmp_path / "weights.npz"
    save(path, **WEIGHTS, **NOT_READ, step=np.int64(9), **{"encoder/w": LARGE[:3]})
    checkpoint = read_npz(path)
    assert checkpoint.step == 9
    assert "objects" in checkpoint.notes[0]
    assert_holds(checkpoint, WEIGHTS | {"encoder/w": LARGE[:3], "step": np.array(9)})
    checkpoint.close()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FileChanged):
        checkpoint.dense("layers.0.weight")


def test_a_series_of_numpy_archives_by_a_glob(tmp_path):
    for step in (5, 10):
        np.savez(tmp_path / f"step_{step}.npz", w=LARGE * step)
    found = {(step, key): value for step, key, value in open_source(str(tmp_path / "*.npz"))}
    np.testing.assert_array_equal(found[10, "w"], (LARGE * 10).astype(np.float64))
    assert len(found) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"no array",
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4' ",
        b"\x93NUMPY\x03\x00\x10\x00\x00\x00",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999,), }".ljust(117)
        + b"\n",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }".ljust(117)
        + b"\n",
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': [], 'fortran_order': 3, 'shape': 'a', }".ljust(117)
        + b"\n",
        b"",
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_numpy_archives_are_one_line(tmp_path, content, method):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("w.npy", content)
    with pytest.raises(InputError, match=r"a\.npz"):
        read_npz(path)


def test_a_numpy_archive_that_is_cut_short(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, w=LARGE)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"a\.npz"):
        read_npz(path)
