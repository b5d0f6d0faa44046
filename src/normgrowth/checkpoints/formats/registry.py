"""The formats of checkpoints, one row each: their suffixes, how files are recognized, how they are opened.

On this machine a file is recognized by its content; elsewhere, where a look into each file would be a request for
each, by its name.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.formats import dcp, npz, pytorch, safetensors
from normgrowth.checkpoints.formats.tensorflow import reader as tensorflow
from normgrowth.errors import InputError
from normgrowth.foreign_files import is_pointer


@dataclass(frozen=True)
class Format:
    """A checkpoint starts from one file: the weights, an index of shards, the metadata of a folder."""

    name: str
    open: Callable[[Path], Checkpoint]
    suffixes: tuple[str, ...] = ()  # that mean this format where only names are known
    certain: tuple[str, ...] = ()  # that mean it on this machine as well: a damaged file is not passed over
    has_content: Callable[[Path], bool] | None = None  # recognizes a file on this machine
    is_index: bool = False  # names the files of weights
    by_ranges: bool = False  # of files elsewhere, only what is asked for is read


def _is_pytorch(path: Path) -> bool:
    return pytorch.is_pytorch(path) or (path.suffix in PICKLED and is_pointer(path))


PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".chkpt", ".torch")
_INDEX, _BIN_INDEX = (".safetensors.index.json",), (".bin.index.json",)
# In the order in which a file is tried.
FORMATS = {
    row.name: row
    for row in (
        Format("safetensors-index", safetensors.read_sharded, _INDEX, _INDEX, is_index=True, by_ranges=True),
        Format("pytorch-index", pytorch.read_pytorch_sharded, _BIN_INDEX, _BIN_INDEX, is_index=True),
        Format(
            "tensorflow",
            tensorflow.read_tensorflow,
            (".index",),
            has_content=tensorflow.is_tensorflow_index,
            by_ranges=True,
        ),
        Format(
            "safetensors",
            safetensors.read_safetensors,
            (".safetensors",),
            (".safetensors",),
            has_content=safetensors.is_safetensors,
            by_ranges=True,
        ),
        Format("npz", npz.read_npz, has_content=npz.is_npz),  # only where it is named: others save data so
        Format("pytorch", pytorch.read_pytorch, PICKLED, (".pt", ".pth"), has_content=_is_pytorch),
        Format("distributed", lambda metadata: dcp.read_distributed(metadata.parent)),
    )
}
SUFFIXES = tuple(suffix for row in FORMATS.values() for suffix in row.suffixes)
CERTAIN = tuple(suffix for row in FORMATS.values() for suffix in row.certain)
# Names that may mean anything: files with them are looked into on this machine.
_VAGUE = (".tar", ".model", ".pkl", ".weights")


def format_of_name(name: str, beside: Sequence[str]) -> str | None:
    """By its name alone. beside: the files of its folder, among which an index of TensorFlow has data."""
    for row in FORMATS.values():
        if row.suffixes and name.endswith(row.suffixes):
            if row.name != "tensorflow":
                return row.name
            data = re.compile(re.escape(name.removesuffix(".index")) + r"\.data-\d{5}-of-\d{5}")
            return row.name if any(data.fullmatch(other) for other in beside) else None
    return None


def format_of_file(file: Path) -> str | None:
    """By the content of a file on this machine."""
    try:
        for row in FORMATS.values():
            if row.is_index and file.name.endswith(row.certain):
                return row.name
            if file.is_file() and (file.suffix in row.certain or (row.has_content and row.has_content(file))):
                return row.name
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    return None


def may_hold_weights(name: str) -> bool:
    """Whether a file of a folder is looked into: named as weights are, or with a bare number, or with no suffix."""
    suffix = PurePath(name).suffix
    return suffix.lower() in (*SUFFIXES, *_VAGUE, "") or suffix[1:].isdecimal()


def without_suffix(name: str) -> str:
    return re.sub(rf"({'|'.join(map(re.escape, (*SUFFIXES, '.json', *_VAGUE)))})$", "", name)
