"""PyTorch files whose structure was changed: operations, their arguments, lengths, archives. A read or one line."""

import argparse
import io
import pickletools
import struct
import zipfile
from functools import cache

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import bounded
from synthetic_series import tiny_state
from torch import nn
from torch_files import call, chain, dictionary, many, name, number, storage, tensor, text

from normgrowth.checkpoints.local_files import find_checkpoints
from normgrowth.errors import InputError

ARGUMENTS = [
    *(
        b"N",
        b"\x88",
        b")",
        b"]",
        b"}",
        b"(",
        b"0",
        b"2",
        b"R",
        b"b",
        b"s",
        b"a",
        b"Q",
        b"t",
        b"\x85",
        b"\x81",
        b".",
    ),
    *(number(n) for n in (0, 1, -1, 3, 255, 2**31, 2**61, 2**63, -(2**63), 2**200)),
    *(text(t) for t in ("", "0", "cpu", "meta", "storage", "module", "model", "w", "a\nb", "x" * 5000)),
    *(b"G" + struct.pack(">d", x) for x in (0.0, 1e300, float("nan"))),
    *(b"h" + bytes([i]) for i in range(0, 60, 3)),
    *(b"q" + bytes([i]) for i in range(0, 60, 7)),
    *(many(*map(number, shape)) for shape in ((), (2, 3), (2**40, 2**22), (-1,), (1,) * 70)),
    *(storage(), storage(2**60), storage(kind="ComplexFloatStorage"), storage(kind="UntypedStorage")),
    *(tensor(), tensor((2**28,), (0,)), dictionary(w=tensor()), chain(200, tensor())),
    *(
        name("torch._utils", f"_rebuild_{kind}")
        for kind in ("tensor_v2", "tensor_v3", "parameter", "qtensor")
    ),
    *(
        name("collections", "OrderedDict"),
        name("torch", "Size"),
        name("builtins", "eval"),
        name("torch", "float32"),
    ),
    *(
        call(name("a", "B")),
        b"\x82\x01",
        b"\x8e" + struct.pack("<Q", 2**60),
        b"\x8b\xff\xff\xff\x7f",
        b"\xff",
    ),
]


def contents():
    return {
        "state dict": tiny_state(),
        "training": {
            "model": dict(list(tiny_state().items())[:3]),
            "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]},
            "args": argparse.Namespace(a=1),
            "step": torch.tensor(7),
        },
        "views": {"a": torch.randn(6, 4).t(), "b": torch.randn(4, 4)[:, 1:3], "c": torch.ones(1).expand(9)},
        "module": nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)),
    }


@cache
def parts(kind: str, protocol: int) -> tuple[tuple[bytes, ...], tuple[tuple[str, bytes], ...]]:
    """The operations of an archive's pickle, and its other entries."""
    packed = io.BytesIO()
    torch.save(contents()[kind], packed, pickle_protocol=protocol)
    with zipfile.ZipFile(packed) as file:
        entries = {info.filename.partition("/")[2]: file.read(info) for info in file.infolist()}
    raw = entries.pop("data.pkl")
    return operations(raw), tuple(entries.items())


def operations(raw: bytes) -> tuple[bytes, ...]:
    starts = [place for _, _, place in pickletools.genops(raw)]
    return tuple(raw[a:b] for a, b in zip(starts, [*starts[1:], len(raw)], strict=True))


def mutated(data: st.DataObject, given: tuple[bytes, ...]) -> bytes:
    ops = list(given)
    for _ in range(data.draw(st.integers(1, 4))):
        if not ops:
            break
        at, other = (data.draw(st.integers(0, len(ops) - 1)) for _ in range(2))
        match data.draw(st.integers(0, 6)):
            case 0:
                del ops[at : at + data.draw(st.sampled_from([1, 2, 10]))]
            case 1:
                ops[at:at] = ops[at : at + data.draw(st.sampled_from([1, 5, 50]))] * data.draw(
                    st.sampled_from([1, 100])
                )
            case 2:
                ops[at], ops[other] = ops[other], ops[at]
            case 3:
                ops[at] = data.draw(st.sampled_from(ARGUMENTS))
            case 4:
                ops.insert(at, data.draw(st.sampled_from(ARGUMENTS)))
            case 5:
                changed = bytearray(ops[at])
                changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
                ops[at] = bytes(changed)
            case _:  # an argument of the same kind of operation elsewhere
                same = [op for op in ops if op[:1] == ops[at][:1]]
                ops[at] = data.draw(st.sampled_from(same))
    return b"".join(ops)


def check(path):
    """The whole way: found, opened, every value read."""
    message = ""
    with bounded():
        try:
            for unit in find_checkpoints(path):
                checkpoint = unit.open()
                assert all(note.isprintable() for note in checkpoint.notes)
                for entry, tensor in checkpoint.tensors.items():
                    assert checkpoint.dense(entry).size == tensor.numel
                checkpoint.close()
        except InputError as error:
            message = str(error)
    assert message.isprintable()
    assert len(message) < 500


FUZZ = settings(deadline=None, suppress_health_check=list(HealthCheck))


@FUZZ
@given(st.data())
def test_pickles_of_archives(tmp_path_factory, data):
    kind, protocol = data.draw(st.sampled_from(list(contents()))), data.draw(st.sampled_from([2, 4]))
    ops, entries = parts(kind, protocol)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for entry, content in (("data.pkl", mutated(data, ops)), *entries):
            file.writestr(f"archive/{entry}", content)
    path = tmp_path_factory.getbasetemp() / "fuzz.pt"
    path.write_bytes(packed.getvalue())
    check(path)


@FUZZ
@given(st.data())
def test_legacy_files(tmp_path_factory, data):
    packed = io.BytesIO()
    kind = data.draw(st.sampled_from(["state dict", "training", "views"]))
    torch.save(contents()[kind], packed, _use_new_zipfile_serialization=False)
    raw = packed.getvalue()
    pickles, start = [], 0
    for _ in range(5):
        length = list(pickletools.genops(raw[start:]))[-1][2] + 1
        pickles.append(raw[start : start + length])
        start += length
    which = data.draw(st.sampled_from([1, 2, 3, 3, 3, 4]))
    pickles[which] = mutated(data, operations(pickles[which]))
    path = tmp_path_factory.getbasetemp() / "fuzz.pth"
    tail = raw[start : start + data.draw(st.sampled_from([len(raw), 0, 7, 100]))]
    path.write_bytes(b"".join(pickles) + tail)
    check(path)


@FUZZ
@given(st.data())
def test_directories_of_archives(tmp_path_factory, data):
    """Bytes of the archive's own records: names, sizes, offsets, methods, counts."""
    packed = io.BytesIO()
    torch.save(tiny_state(layers=1), packed)
    raw = bytearray(packed.getvalue())
    marks = [b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"]
    places = [i for i in range(len(raw)) if bytes(raw[i : i + 4]) in marks]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from(places)) + data.draw(st.integers(0, 60))
        value = data.draw(st.sampled_from([b"\xff" * 8, bytes(8), b"\xff\xff", b"\x01", b"\x00\x00\x00\x80"]))
        raw[at : at + len(value)] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.bin"
    path.write_bytes(raw[: len(raw) - data.draw(st.sampled_from([0, 0, 1, 22, 100]))])
    check(path)
