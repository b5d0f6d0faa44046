"""PyTorch files that lie: one line or a read, in bounded time and memory, and nothing in them ever runs."""

import argparse
import os
import pickle
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from refusals import refused
from torch_files import archive, call, chain, dictionary, many, name, number, storage, tensor, text

from normgrowth.checkpoints.formats.pytorch import read_pytorch
from normgrowth.errors import InputError

SECONDS, MEMORY = 20, 1 << 30


def answer_to(path):
    """The checkpoint, with all its values read, or the message of its refusal."""
    try:
        checkpoint = read_pytorch(path)
        for entry in checkpoint.tensors:
            checkpoint.dense(entry)
        return checkpoint
    except InputError as error:
        return str(error)


def bounded(path):
    """The same, within the limits, and one line."""
    start = time.monotonic()
    answer = answer_to(path)
    assert time.monotonic() - start < SECONDS
    tracemalloc.start()  # takes several times as long
    answer_to(path)
    assert tracemalloc.get_traced_memory()[1] < MEMORY
    tracemalloc.stop()
    if isinstance(answer, str):
        assert "\n" not in answer
        assert len(answer) < 500
    return answer


def built(value, **attributes):
    return value + dictionary(**attributes) + b"b"


ORDERED = call(name("collections", "OrderedDict"))
PARAMETER = call(name("torch._utils", "_rebuild_parameter"), tensor(), b"\x88", ORDERED)
LIES = dict(get=number(1), items=number(2), dim=number(3), numel=number(4), detach=number(5), item=number(6))
GOOD = dictionary(w=tensor())
READ = {
    "attributes of a dictionary": built(ORDERED + b"(" + text("w") + tensor() + b"u", **LIES),
    "attributes of a parameter": dictionary(w=built(PARAMETER, **LIES)),
    "attributes of a tensor": dictionary(w=built(tensor(), **LIES)),
    "a class that is called": dictionary(
        w=tensor(), args=call(name("__main__", "TrainingConfig"), number(1))
    ),
    "a class with state": dictionary(w=tensor(), args=built(call(name("a", "B")), lr=number(1))),
    "a huge bytearray": dictionary(w=tensor(), x=call(name("builtins", "bytearray"), number(2**44))),
    "a huge range": dictionary(
        w=tensor(), x=call(name("builtins", "list"), call(name("builtins", "range"), number(2**44)))
    ),
    "a cycle that is not looked at": dictionary(model=GOOD, args=b"}q\x05(" + text("x") + b"h\x05u"),
    "nested lists": dictionary(w=tensor(), x=b"]" * 5000 + b"a" * 4999),
    "nested tuples": dictionary(w=tensor(), x=b")" + b"\x85" * 100_000),
    "a nested key": dictionary(w=tensor(), x=b"}(" + b")" + b"\x85" * 100_000 + b"Nu"),
    "keys of all kinds": b"}("
    + text("w")
    + tensor()
    + b"NNG"
    + bytes(8)
    + b"N)N]N"
    + number(5)
    + b"N"
    + number(2**500)
    + b"Nu",
    "a long number": dictionary(w=tensor(), step=b"\x8b" + struct.pack("<I", 10**6) + b"\x01" * 10**6),
    "a call of a result": dictionary(w=tensor(), x=call(call(name("a", "b")), number(1))),
    "a parameter that was stored with state": dictionary(
        w=call(
            name("torch._utils", "_rebuild_parameter_with_state"),
            tensor(),
            b"\x88",
            ORDERED,
            dictionary(a=number(1)),
        )
    ),
    "a tensor of a subclass": dictionary(
        w=call(
            name("torch._tensor", "_rebuild_from_type_v2"),
            name("torch._utils", "_rebuild_tensor_v2"),
            name("my.module", "Tensor"),
            many(
                storage(), number(0), many(number(2), number(3)), many(number(3), number(1)), b"\x89", ORDERED
            ),
            dictionary(),
        )
    ),
    "a tensor of torch 0.4": dictionary(
        w=call(
            name("torch._utils", "_rebuild_tensor"),
            storage(),
            number(0),
            many(number(2), number(3)),
            many(number(3), number(1)),
        )
    ),
    "a storage of the GPU": dictionary(w=tensor()).replace(b"ctorch\nFloat", b"ctorch.cuda\nFloat"),
    "an OrderedDict made by copyreg": dictionary(
        w=tensor(),
        x=call(
            name("copyreg", "_reconstructor"),
            name("collections", "OrderedDict"),
            name("builtins", "object"),
            b"N",
        ),
    ),
    "an OrderedDict of Python 2": call(
        name("collections", "OrderedDict"), b"](](" + text("w") + tensor() + b"ee"
    ),
}


@pytest.mark.parametrize("kind", READ)
def test_what_lies_next_to_the_weights_does_not_matter(tmp_path, kind):
    checkpoint = bounded(archive(tmp_path / "a.pt", READ[kind]))
    assert not isinstance(checkpoint, str), checkpoint
    assert set(checkpoint.tensors) == {"w"}
    np.testing.assert_array_equal(checkpoint.dense("w").view(np.float32), np.arange(6))


def doubled(levels):
    """Each dictionary refers to the next one twice: 2**levels paths to one tensor."""
    value = dictionary(w=tensor()) + b"q\x00"
    for i in range(levels):
        value = b"}(" + text("a") + value + text("b") + b"h" + bytes([i]) + b"u" + b"q" + bytes([i + 1])
    return value


def shared(count):
    """One list of pairs, of which many OrderedDicts would be made."""
    pairs = b"](" + b"".join(b"](" + text(f"k{i}") + b"Ne" for i in range(count)) + b"e"
    made = name("collections", "OrderedDict") + b"q\x00" + b"0" + pairs + b"\x85q\x01" + b"0"
    return made + b"}(" + b"".join(text(f"n{i}") + b"h\x00h\x01R" for i in range(count)) + b"u"


REFUSED = {
    "a cycle": (b"}q\x05(" + text("a") + b"h\x05" + text("b") + b"h\x05u", ""),
    "a cycle of one": (b"}q\x05(" + text("a") + b"h\x05u", "no tensors"),
    "a cycle with weights": (b"}q\x05(" + text("w") + tensor() + text("a") + b"h\x05u", "deep"),
    "a cycle of a module": (b"}q\x05(" + text("model") + b"h\x05" + text("w") + tensor() + b"u", "deep"),
    "5,000 dictionaries deep": (chain(5000, tensor()), "deep"),
    "5,000 models deep": (chain(5000, tensor(), "model"), "deep"),
    "2^24 paths": (doubled(24), "too many times"),
    "a list that many share": (shared(5000), "too many times"),
    "a stride of 0": (dictionary(w=tensor((2**28,), (0,))), "refer to the same bytes"),
    "more values than memory": (dictionary(w=tensor((2**31, 2**31 - 1), (0, 0))), "refer to the same bytes"),
    "2^62 values": (dictionary(w=tensor((2**62,), (0,))), "not a plain tensor"),
    "beyond its storage": (dictionary(w=tensor((2, 4))), "larger than its storage"),
    "an offset beyond": (dictionary(w=tensor(offset=1)), "larger than its storage"),
    "a negative size": (dictionary(w=tensor((-2, 3))), "not a plain tensor"),
    "a negative stride": (dictionary(w=tensor((2, 3), (-3, 1))), "not a plain tensor"),
    "200 dimensions": (dictionary(w=tensor((1,) * 200)), "dimensions"),
    "a storage of another size": (dictionary(w=tensor(count=7)), "28 bytes"),
    "a storage that is not there": (dictionary(w=tensor(key="9")), "without data/9"),
    "sizes that are texts": (dictionary(w=tensor()).replace(number(3), text("3")), "not a plain tensor"),
    "a tensor without arguments": (
        dictionary(w=call(name("torch._utils", "_rebuild_tensor_v2"))),
        "not a plain tensor",
    ),
    "a storage that is none": (dictionary(w=tensor().replace(b"Q", b"")), "no storage"),
    "a name of two lines": (b"}(" + text("a\nb") + tensor() + b"u", "name"),
    "a lone surrogate": (b"}(X\x03\x00\x00\x00\xed\xa0\x80" + tensor() + b"u", "name"),
    "a long name": (dictionary(w=tensor(), x=chain(40, tensor(), "n" * 40)), "name"),
    "a text that is cut short": (b"X\xff\xff\xff\x7fabc", "2147483647 bytes"),
    "bytes that are cut short": (b"\x8e" + struct.pack("<Q", 2**60) + b"abc", "bytes"),
    "a number that is cut short": (b"\x8b\xff\xff\xff\x7fabc", "bytes"),
    "an extension": (b"\x82\xf0", "EXT1"),
    "a buffer elsewhere": (b"\x97", "NEXT_BUFFER"),
    "a persistent id in text": (b"P1\n", "PERSID"),
    "no such opcode": (b"\xff", "0xff"),
    "an empty stack": (b"R", "stack"),
    "no mark": (b"u", "stack"),
    "a reference to nothing": (b"h\x07", "did not store"),
    "no end": (b"}", ""),
    "a dictionary of odd length": (b"}(Nu", "a key without a value"),
    "an item of a number": (b"K\x01NNs", "not a dict"),
    "a call without a tuple": (name("a", "b") + b"NR", "not a class"),
    "a class named by a number": (b"K\x01K\x02\x93", "not text"),
    "a class with a long name": (name("a" * 300, "b"), "301 characters"),
    "text that is not UTF-8": (b"X\x01\x00\x00\x00\xff", "UTF-8"),
    "a list at the top": (b"](" + tensor() + b"e", "no tensors"),
    "numpy arrays": (dictionary(w=call(name("numpy.core.multiarray", "_reconstruct"), number(1))), "numpy"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_lies_about_the_weights_is_refused(tmp_path, kind):
    value, reason = REFUSED[kind]
    answer = bounded(archive(tmp_path / "a.pt", value))
    assert isinstance(answer, str)
    assert "a.pt" in answer
    assert reason in answer


def test_files_made_by_hand_are_such_as_torch_reads(tmp_path):
    loaded = torch.load(archive(tmp_path / "a.pt", GOOD), weights_only=True)
    assert loaded["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def rebuild(function, *args):
    return call(name("torch._utils", f"_rebuild_{function}"), *args)


SIZES = (many(number(2), number(3)), many(number(3), number(1)))
KINDS = {
    "sparse": rebuild("sparse_tensor", name("torch", "sparse_coo"), many(tensor(), tensor(), SIZES[0])),
    "quantized": rebuild("qtensor", storage(kind="QInt8Storage"), number(0), *SIZES, b")", b"\x89", ORDERED),
    "nested": rebuild("nested_tensor", tensor(), tensor(), tensor(), tensor()),
    "meta": rebuild("meta_tensor_no_storage", name("torch", "float32"), *SIZES, b"\x89"),
    "complex64": tensor(count=3, kind="ComplexFloatStorage"),
    "numpy": rebuild("device_tensor_from_numpy", b"N", name("torch", "float32"), text("xla"), b"\x89"),
    "DTensor": rebuild(
        "wrapper_subclass", name("torch.distributed.tensor", "DTensor"), name("torch", "float32"), *SIZES
    ),
    "float8_e8m0fnu": rebuild(
        "tensor_v3",
        storage(24, "UntypedStorage"),
        number(0),
        *SIZES,
        b"\x89",
        ORDERED,
        name("torch", "float8_e8m0fnu"),
    ),
    "Float4": tensor(kind="Float4Storage"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_not_summed_are_left_out_with_a_note(tmp_path, kind):
    checkpoint = read_pytorch(archive(tmp_path / "a.pt", dictionary(w=tensor(), other=KINDS[kind])))
    assert set(checkpoint.tensors) == {"w"}
    assert "other" in checkpoint.notes[0]
    assert kind in checkpoint.notes[0]
    assert kind in refused(read_pytorch, archive(tmp_path / "b.pt", dictionary(other=KINDS[kind])))


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_torch_itself_wrote_are_left_out_with_a_note(tmp_path):
    w = torch.randn(4, 3)
    others = {
        "complex": w.cfloat(),
        "sparse": w.to_sparse(),
        "csr": w.to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(w, 0.1, 0, torch.qint8),
        "meta": w.to("meta"),
        "nested": torch.nested.nested_tensor([w, w[:2]]),
    }
    for kind, other in others.items():
        torch.save({"w": w, "other": other}, tmp_path / "a.pt")
        checkpoint = read_pytorch(tmp_path / "a.pt")
        assert set(checkpoint.tensors) == {"w"}, kind
        assert "other" in checkpoint.notes[0], kind


# Nothing runs.


class Runs:
    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def calls(target):
    import copyreg
    import functools
    import subprocess

    command = f"touch {target}"
    code = f"open({str(target)!r}, 'w')"
    return {
        "os.system": Runs(os.system, command),
        "eval": Runs(eval, code),
        "exec": Runs(exec, code),
        "torch.load": Runs(torch.load, str(target)),
        "copyreg": Runs(copyreg._reconstructor, argparse.Namespace, object, None),
        "partial": Runs(functools.partial, os.system, command),
        "map": Runs(list, Runs(map, os.system, [command])),
        "getattr": Runs(getattr, Runs(__import__, "os"), "system"),
        "subprocess": Runs(subprocess.Popen, ["touch", str(target)]),
        "open": Runs(open, str(target), "w"),
        "nested": {"deep": [Runs(os.system, command)]},
    }


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("place", ["next to", "instead of", "as key"])
@pytest.mark.parametrize("kind", calls("x"))
def test_nothing_runs(tmp_path, kind, place, legacy):
    target = tmp_path / "it-ran"
    evil = calls(target)[kind]
    content = {"w": torch.ones(2), "x": evil}
    if place == "instead of":
        content = {"w": evil, "v": torch.ones(2)}
    elif place == "as key" and kind != "nested":
        content = {"w": torch.ones(2), evil: 1}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    checkpoint = bounded(tmp_path / "a.pt")
    assert not isinstance(checkpoint, str)
    assert len(checkpoint.tensors) == 1
    assert "without running code" in checkpoint.notes[0]
    assert not target.exists()


def test_an_instance_by_opcode_and_state_by_function_do_not_run(tmp_path):
    target = tmp_path / "it-ran"
    for value in (
        b"(" + text(f"touch {target}") + b"iposix\nsystem\n",
        b"(cposix\nsystem\n" + text(f"touch {target}") + b"o",
        b"cposix\nsystem\n" + text(f"touch {target}") + b"\x85}\x92",
        call(name("a", "b")) + call(name("posix", "system"), text(f"touch {target}")) + b"b",
    ):
        checkpoint = bounded(archive(tmp_path / "a.pt", dictionary(w=tensor(), x=value)))
        assert not isinstance(checkpoint, str)
        assert "posix.system" in checkpoint.notes[0]
        assert not target.exists()


# Archives and legacy files that are broken.


def test_big_endian_files_are_refused(tmp_path):
    assert "big-endian" in refused(read_pytorch, archive(tmp_path / "a.pt", GOOD, byteorder=b"big"))
    torch.save({"w": torch.ones(2)}, tmp_path / "b.pt", _use_new_zipfile_serialization=False)
    raw = (tmp_path / "b.pt").read_bytes()
    where = raw.index(b"little_endian")
    flag = raw.index(b"\x88", where)
    (tmp_path / "b.pt").write_bytes(raw[:flag] + b"\x89" + raw[flag + 1 :])
    assert "big-endian" in refused(read_pytorch, tmp_path / "b.pt")


def test_compressed_archives_are_refused(tmp_path):
    torch.save({"w": torch.zeros(1000)}, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as old,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for entry in old.namelist():
            new.writestr(entry, old.read(entry))
    assert "compressed" in refused(read_pytorch, tmp_path / "b.pt")


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
def test_truncated_legacy_files(tmp_path, cut):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(cut * len(raw))])
    assert "truncated" in refused(read_pytorch, path)


def test_other_files_with_the_start_of_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("readme.txt", "x")
    assert "data.pkl" in refused(read_pytorch, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps({"w": 1}))
    assert "not a PyTorch file" in refused(read_pytorch, tmp_path / "b.pt")


def test_a_pickle_of_too_many_operations(tmp_path, monkeypatch):
    monkeypatch.setattr("normgrowth.checkpoints.formats.pickled.pickles.OPERATIONS", 1000)
    assert "operations" in refused(read_pytorch, archive(tmp_path / "a.pt", b"N0" * 600 + GOOD))
