"""The common form of all checkpoint formats: named tensors with access to their raw values.

The reader of a format only creates an index: name -> dtype, shape and location of the values. The index is a list of
byte ranges in files; `MappedCheckpoint` reads them. Checkpoints on a network are a `remote.RemoteCheckpoint`.

Values are returned as raw bits in one-dimensional pieces, in the order of storage. Sums do not depend on the order, as
long as both tensors of a pair have the same order; `Tensor.layout` identifies it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from normgrowth.checkpoints.storage.crc32c import crc32c
from normgrowth.checkpoints.storage.encoded import Encoded, Inline
from normgrowth.checkpoints.storage.gathered import Gathered
from normgrowth.checkpoints.storage.mapped_file import FileState, MappedFile
from normgrowth.errors import DamagedTensor, InputError, NoTensors, UnsupportedDtype

# The numpy dtype for the bits of each dtype, with the names of safetensors. The kernel reads the first four
# directly; float16 uses int16 to be distinct from bfloat16.
STORAGE: dict[str, np.dtype] = {
    name: np.dtype(bits)
    for name, bits in {
        "F64": np.uint64,
        "F32": np.uint32,
        "BF16": np.uint16,
        "F16": np.int16,
        "F8_E4M3": np.uint8,
        "F8_E5M2": np.uint8,
        "I64": np.int64,
        "I32": np.int32,
        "I16": np.int16,
        "I8": np.int8,
        "U64": np.uint64,
        "U32": np.uint32,
        "U16": np.uint16,
        "U8": np.uint8,
        "BOOL": np.uint8,
    }.items()
}
WIDTH = {dtype: bits.itemsize for dtype, bits in STORAGE.items()}
DIRECT = ("F64", "F32", "BF16", "F16")
LONGEST_NAME = 1000  # characters of a tensor's full name


class Tensor(NamedTuple):
    """One entry of a checkpoint's index. A tuple, because a model can have 20,000 of them."""

    dtype: str
    shape: tuple[int, ...]
    layout: Hashable = None  # None: row-major and in one piece. Equal layouts mean equal order of values.

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes; 0 if the dtype is not in STORAGE, because such values are never read."""
        return self.numel * WIDTH.get(self.dtype, 0)


def storage_dtype(label: str, name: str, dtype: str) -> np.dtype:
    """The numpy dtype for the bits of a tensor. Raises UnsupportedDtype."""
    if (bits := STORAGE.get(dtype)) is None:
        raise UnsupportedDtype(label, name, dtype)
    return bits


class Piece(NamedTuple):
    """Consecutive values of one tensor, as a byte range of a file."""

    file: str  # relative to the checkpoint's root; "" if the root is the file
    offset: int
    numel: int


class Located(NamedTuple):
    """File, first byte and end of each of a list of tensors; file −1 for tensors that are not one contiguous piece."""

    files: list[str]
    file: NDArray[np.intp]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]


AnyPiece = Piece | Gathered | Encoded | Inline
Checksums = dict[tuple[str, int], int]  # file and first byte of a piece -> CRC32C of its bytes


class Ranges(dict[str, tuple[AnyPiece, ...]]):
    """Name -> location of the values. Checkpoints of a series with equal headers share one object.

    The result of `located` is cached for the last list of names: a series uses the same list at every step, and looking
    up 20,000 names takes longer than summing their values.
    """

    asked: tuple[Sequence[str], Located] | None = None

    def located(self, names: Sequence[str], tensors: Mapping[str, Tensor]) -> Located:
        if self.asked is not None and self.asked[0] is names:
            return self.asked[1]
        files: dict[str, int] = {}
        rows: list[tuple[int, int, int]] = []
        for name in names:
            pieces, tensor = self[name], tensors[name]
            if len(pieces) != 1 or tensor.layout is not None or type(pieces[0]) is not Piece:
                rows.append((-1, 0, 0))
                continue
            file, offset, numel = pieces[0]
            rows.append((files.setdefault(file, len(files)), offset, offset + numel * WIDTH[tensor.dtype]))
        file, start, stop = np.array(rows, np.int64).reshape(-1, 3).T
        found = Located(list(files), file, start, stop)
        self.asked = names, found
        return found


@dataclass
class Checkpoint(ABC):
    """An open checkpoint: its index is read, its values are not."""

    is_remote: ClassVar[bool] = False  # whether reading values takes requests over a network
    label: str  # its name in messages: the path, or the repository and revision
    tensors: dict[str, Tensor]  # may be shared: do not modify
    ranges: Ranges
    _: KW_ONLY
    step: int | None = None  # the training step stored in the checkpoint, if any
    aliases: dict[str, str] = field(default_factory=dict)  # tied tensors: name -> the name with the values
    reads_whole: bool = False  # reading any part of a tensor copies the whole tensor
    on_close: Callable[[], None] | None = None  # cleanup, for example of downloaded files
    notes: tuple[str, ...] = ()  # remarks for the user, for example on skipped tensors
    checksums: Checksums = field(default_factory=dict, repr=False)  # for formats that store them

    def __post_init__(self) -> None:
        check_names(self.label, self.tensors)

    @property
    def can_stay_open(self) -> bool:
        """Whether all checkpoints of its series can be open at once; not if downloaded, which would fill the disk."""
        return self.on_close is None

    @abstractmethod
    def pieces(self, name: str) -> list[np.ndarray]:
        """The raw bits of a tensor in the order of its layout; views of the file where possible."""

    def piece(self, name: str, place: int) -> np.ndarray:
        """One element of `pieces`."""
        return self.pieces(name)[place]

    def dense(self, name: str) -> np.ndarray:
        """The raw bits of the whole tensor, row-major and flat; a copy only if necessary."""
        return assemble(self.tensors[name], self.pieces(name))

    def addresses(self, names: Sequence[str]) -> tuple[NDArray[np.int64], list[np.ndarray]]:
        """The memory address of each tensor, or 0 if it is not one contiguous piece of a mapped file; and the maps.

        The addresses are valid while the caller keeps the maps: a checkpoint may be closed while a thread reads it.
        """
        return np.zeros(len(names), np.int64), []

    def renamed(self, old_name: Mapping[str, str]) -> Self:
        """The same checkpoint with other names. old_name: new name -> old name."""
        new_name = {old: new for new, old in old_name.items()}
        return replace(
            self,
            tensors={new: self.tensors[old] for new, old in old_name.items()},
            ranges=Ranges({new: self.ranges[old] for new, old in old_name.items()}),
            aliases={new_name[name]: new_name[target] for name, target in self.aliases.items()},
        )

    def without_wrappers(self) -> Self:
        """The checkpoint with the prefixes of wrappers removed from its names. Raises NoTensors."""
        if not self.tensors:
            raise NoTensors(f"{self.label}: has no tensors")
        old_name = without_wrappers(self.tensors)
        return self if old_name is None else self.renamed(old_name)

    def mapped_files(self) -> list[MappedFile]:
        return []

    def check_whole(self) -> None:
        """Raise FileChanged if a file was truncated while it was read; missing values are read as 0."""
        for mapped in self.mapped_files():
            mapped.check_whole()

    def check_unchanged(self) -> None:
        """Raise FileChanged if a local file was truncated or modified since it was opened."""
        for mapped in self.mapped_files():
            mapped.check_unchanged()

    def close(self) -> None:
        if self.on_close:
            self.on_close()


@dataclass
class MappedCheckpoint(Checkpoint):
    """Tensors that are byte ranges of local files. Pickles as its index; files are mapped when they are used."""

    root: Path  # the file, or the folder with the files
    _: KW_ONLY
    states: dict[str, FileState] = field(default_factory=dict, repr=False)  # of files whose headers were read
    _verified: set[tuple[str, int]] = field(default_factory=set, repr=False)  # pieces whose checksum matched
    _maps: dict[str, MappedFile] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        # Another machine may have its own copy of the file, with another state.
        return {**self.__dict__, "_maps": {}, "states": {}, "_verified": set()}

    def _map(self, file: str) -> np.ndarray:
        mapped = self._maps.get(file)
        if mapped is None:
            path = self.root / file if file else self.root
            # Atomic: two threads that map the file at once must both use the map that is kept alive.
            mapped = self._maps.setdefault(file, MappedFile(path, self.states.get(file)))
        return mapped.array

    def _cut_short(self, file: str, name: str) -> InputError:
        return InputError(
            f"{self.root / file}: tensor {name} ends beyond the end of the file; is it still being written?"
        )

    def pieces(self, name: str) -> list[np.ndarray]:
        return [self._view(name, piece) for piece in self.ranges[name]]

    def piece(self, name: str, place: int) -> np.ndarray:
        return self._view(
            name, self.ranges[name][place]
        )  # without the others, of which there may be thousands

    def _view(self, name: str, piece: AnyPiece) -> np.ndarray:
        dtype = self.tensors[name].dtype
        bits = storage_dtype(self.label, name, dtype)
        mapped = self._map(piece.file)
        if isinstance(piece, Inline):
            return piece.decoded(bits)
        if isinstance(piece, Encoded):
            stored = piece.nbytes
        else:
            stored = (piece.numel if isinstance(piece, Piece) else piece.extent) * bits.itemsize
        start, stop = piece.offset, piece.offset + stored
        if stop > len(mapped):
            raise self._cut_short(piece.file, name)
        if isinstance(piece, Encoded):
            if (values := piece.decoded(mapped[start:stop], bits)) is None:
                raise InputError(f"{self.root / piece.file}: tensor {name} is damaged: it cannot be decoded")
            return values
        view = mapped[start:stop].view(bits)
        if isinstance(piece, Gathered):
            return piece.copied(view, dtype)
        if self.checksums and (place := (piece.file, start)) not in self._verified:
            if view.size and crc32c(view) != self.checksums[place]:
                self.check_unchanged()
                raise DamagedTensor(str(self.root / piece.file), name)
            self._verified.add(place)
        return view

    def addresses(self, names: Sequence[str]) -> tuple[NDArray[np.int64], list[np.ndarray]]:
        if self.checksums:  # they are verified on access
            return super().addresses(names)
        located = self.ranges.located(names, self.tensors)
        maps = [self._map(file) for file in located.files]
        base = np.array([*(m.ctypes.data for m in maps), 0], np.int64)  # the last entry is for file −1
        size = np.array([*(len(m) for m in maps), 0], np.int64)
        for i in np.flatnonzero(located.stop > size[located.file])[:1]:
            raise self._cut_short(located.files[located.file[i]], names[int(i)])
        return base[located.file] + located.start, maps

    def mapped_files(self) -> list[MappedFile]:
        return list(self._maps.values())

    def close(self) -> None:
        self._maps.clear()
        super().close()


# Prefixes that wrappers of a module add to parameter names. The first is removed only at the start, because a model
# may have a part called "module"; the others anywhere.
_LEADING = ("module.",)
_ANYWHERE = ("_orig_mod.", "_forward_module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def check_names(label: str, names: Iterable[str]) -> None:
    """Raise InputError if a name is too long: finding its layer and role could take hours."""
    if (name := max(names, key=len, default="")) and len(name) > LONGEST_NAME:
        raise InputError(
            f"{label}: has a tensor whose name has {len(name):,} characters; at most {LONGEST_NAME:,} are supported: "
            f"{name[:60]!a}…"
        )


def without_wrappers(names: Iterable[str]) -> dict[str, str] | None:
    """Clean name -> stored name, in the same order; None if no name needs cleaning."""
    names = list(names)
    text = "\n".join(names)
    if not text.startswith(_LEADING) and not any(mark in text for mark in _ANYWHERE):
        return None  # fast path for the common case
    cleaned = {}
    for name in names:
        clean = name
        for mark in _ANYWHERE:
            clean = clean.replace(mark, "")
        cleaned[name] = clean
    while all(clean.startswith(_LEADING) for clean in cleaned.values()) and cleaned:
        cleaned = {name: clean[len(_LEADING[0]) :] for name, clean in cleaned.items()}
    back = {clean: name for name, clean in cleaned.items()}
    if len(back) < len(names) or all(name == clean for clean, name in back.items()):
        return None  # cleaning would make two names equal, or change nothing
    return back


@dataclass(frozen=True)
class Strided:
    """Layout of a contiguous tensor whose axes are stored in another order (a saved transpose)."""

    strides: tuple[int, ...]


@dataclass(frozen=True)
class Chunked:
    """Layout of a tensor stored as boxes, each with a corner and a size, row-major within."""

    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def assemble(tensor: Tensor, pieces: list[np.ndarray]) -> np.ndarray:
    """The whole tensor from its pieces, row-major and flat."""
    match tensor.layout:
        case None:
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        case Strided(strides):
            itemsize = pieces[0].itemsize
            view = np.lib.stride_tricks.as_strided(
                pieces[0], tensor.shape, [s * itemsize for s in strides], writeable=False
            )
            return np.ascontiguousarray(view).reshape(-1)
        case Chunked(boxes):
            whole = np.zeros(tensor.shape, STORAGE[tensor.dtype])
            for (corner, size), piece in zip(boxes, pieces, strict=True):
                box = tuple(slice(c, c + s) for c, s in zip(corner, size, strict=True))
                whole[box] = piece.reshape(size)
            return whole.reshape(-1)
        case unknown:
            raise TypeError(f"unknown layout: {unknown!r}")


@np.errstate(invalid="ignore")  # do not warn about signaling NaNs
def decode(dtype: str, bits: np.ndarray) -> np.ndarray:
    """Raw bits as float64 numbers; slow, for dtypes that the kernel does not read directly."""
    match dtype:
        case "F64":
            return bits.view(np.float64)
        case "F32":
            return bits.view(np.float32).astype(np.float64)
        case "BF16":
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case "F16":
            return bits.view(np.float16).astype(np.float64)
        case "F8_E5M2":  # the upper half of a float16
            return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
        case "F8_E4M3":
            return _e4m3_table()[bits]
        case _:
            return bits.astype(np.float64)


def _e4m3_table() -> np.ndarray:
    """All 256 values of float8 e4m3fn: bias 7, no infinity, NaN where all other bits are set."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    value[(code & 127) == 127] = np.nan
    return np.where(code & 128, -value, value)
