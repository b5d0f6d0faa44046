"""numpy archives: `.npz` files of numpy.savez and numpy.savez_compressed.

Uncompressed arrays are read in place from the mapped file; compressed ones are unpacked on access. Arrays of objects
are pickles, and are skipped.
"""

import ast
import mmap
import zlib
from math import prod
from pathlib import Path

from normgrowth.checkpoints.checkpoint import (
    WIDTH,
    AnyPiece,
    MappedCheckpoint,
    Piece,
    Ranges,
    Strided,
    Tensor,
)
from normgrowth.checkpoints.formats.numpy_arrays import DTYPES
from normgrowth.checkpoints.formats.torch_archive import DEFLATED, Archive
from normgrowth.checkpoints.formats.torch_file import ZIP_START
from normgrowth.checkpoints.formats.torch_tensors import LARGEST, Unreadable
from normgrowth.checkpoints.malformed import Malformed, naming
from normgrowth.checkpoints.steps import as_step
from normgrowth.checkpoints.storage.encoded import Encoded
from normgrowth.checkpoints.storage.mapped_file import opened_map
from normgrowth.errors import InputError

SUFFIX = ".npz"
_ENDING = ".npy"
_HEADER = 10_000  # bytes, numpy's limit for untrusted files
_MAGIC, _VERSIONS = b"\x93NUMPY", (b"\x01", b"\x02", b"\x03")
_STEPS = ("step", "global_step")


def is_npz(path: Path) -> bool:
    """Whether name and content match; the name is needed because torch's files are zip archives as well."""
    if path.suffix != SUFFIX:
        return False
    with path.open("rb") as file:
        return file.read(len(ZIP_START)) == ZIP_START


def read_npz(path: Path) -> MappedCheckpoint:
    tensors: dict[str, Tensor] = {}
    ranges, left_out = Ranges(), list[str]()
    with naming(path), opened_map(path) as mapped:
        data, state = mapped.memory, mapped.state
        if isinstance(data, bytes):
            raise Malformed("is empty")
        archive = Archive(data, 0, len(data), top_folder=False)
        for entry in archive.names():
            name = entry.removesuffix(_ENDING)
            if name == entry or not name.isprintable():
                continue
            try:
                tensors[name], piece = _array(archive, entry, data)
            except Unreadable as error:
                left_out.append(f"{name} ({error})")
                continue
            ranges[name] = (piece,)
    if not tensors:
        raise InputError(f"{path}: has no numeric arrays")
    notes = (f"skipped arrays: {', '.join(left_out[:3])}",) if left_out else ()
    packed = any(not isinstance(pieces[0], Piece) for pieces in ranges.values())
    checkpoint = MappedCheckpoint(
        str(path), tensors, ranges, path, reads_whole=packed, states={"": state}, notes=notes
    )
    checkpoint.step = _step(checkpoint)
    return checkpoint


def _array(archive: Archive, entry: str, data: mmap.mmap) -> tuple[Tensor, AnyPiece]:
    start, stored, size, method = archive.stored(entry)
    if method == DEFLATED:
        try:
            head = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[start : start + stored], 2 * _HEADER)
        except zlib.error as error:
            raise Malformed(f"is an archive whose {entry} is damaged") from error
    else:
        archive.span(entry)
        head = data[start : start + min(stored, 2 * _HEADER)]
    dtype, shape, transposed, header = _header(head, entry)
    numel = prod(shape)
    if header + numel * WIDTH[dtype] != size:
        raise Malformed(f"has {size - header} bytes for {entry}, expected {numel * WIDTH[dtype]}")
    strides = tuple(prod(shape[:axis]) for axis in range(len(shape)))
    tensor = Tensor(dtype, shape, Strided(strides) if transposed and len(shape) > 1 and numel else None)
    if method == DEFLATED:
        return tensor, Encoded("", start, numel, stored, "deflate", header)
    return tensor, Piece("", start + header, numel)


def _header(head: bytes, entry: str) -> tuple[str, tuple[int, ...], bool, int]:
    """The dtype, the shape, whether the first axis varies fastest, and the number of bytes before the values.

    numpy's reader is not used: it also accepts headers of Python 2, with code that can raise any exception.
    """
    wide = head[6:7] != b"\x01"  # versions 2 and 3 have a length of four bytes
    start = 12 if wide else 10
    length = int.from_bytes(head[8:start], "little")
    if not head.startswith(_MAGIC) or head[6:7] not in _VERSIONS or length > min(_HEADER, len(head) - start):
        raise Malformed(f"has {entry}, which is not a numpy array, or has a header that is too long")
    try:
        fields = ast.literal_eval(head[start : start + length].decode("utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise Malformed(f"has {entry}, whose header is damaged") from error
    if type(fields) is not dict or set(fields) != {"descr", "fortran_order", "shape"}:
        raise Malformed(f"has {entry}, whose header is damaged")
    dtype, transposed, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if type(shape) is not tuple or not all(type(n) is int and 0 <= n < LARGEST for n in shape):
        raise Malformed(f"has {entry}, whose shape is invalid")
    if type(dtype) is not str or (name := dtype.lstrip("<|=")) not in DTYPES:
        raise Unreadable(f"of dtype {str(dtype)[:40]}")
    return DTYPES[name], shape, transposed is True, start + length


def _step(checkpoint: MappedCheckpoint) -> int | None:
    for name in _STEPS:
        tensor = checkpoint.tensors.get(name)
        if tensor is not None and tensor.dtype in ("I64", "I32") and tensor.numel == 1:
            return as_step(int(checkpoint.dense(name)[0]))
    return None
