"""The checkpoint formats: suffixes, detection and reader of each.

Local files are recognized by their content. Remote files are recognized by their name, because reading the content
would take a request for each file.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.foreign_files import is_pointer
from normgrowth.checkpoints.formats import dcp, npz, pytorch, safetensors
from normgrowth.checkpoints.formats.tensorflow import reader as tensorflow
from normgrowth.errors import InputError


@dataclass(frozen=True)
class Format:
    """A checkpoint format. `open` takes one file: the weights, an index of shards, or the metadata of a folder."""

    name: str
    open: Callable[[Path], Checkpoint]
    suffixes: tuple[str, ...] = ()  # of remote files in this format
    certain: tuple[str, ...] = ()  # of local files in this format, even if damaged: they are not ignored
    has_content: Callable[[Path], bool] | None = None  # recognizes a local file
    is_index: bool = False  # the file lists the files with weights
    by_ranges: bool = False  # remote files are read by byte ranges, not downloaded


def _is_pytorch(path: Path) -> bool:
    return pytorch.is_pytorch(path) or (path.suffix in PICKLED and is_pointer(path))


PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".chkpt", ".torch")
_INDEX, _BIN_INDEX = (".safetensors.index.json",), (".bin.index.json",)
# In the order in which they are tried.
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
        # Only if given by name, because .npz files often have other data.
        Format("npz", npz.read_npz, has_content=npz.is_npz),
        Format("pytorch", pytorch.read_pytorch, PICKLED, (".pt", ".pth"), has_content=_is_pytorch),
        Format("distributed", lambda metadata: dcp.read_distributed(metadata.parent)),
    )
}
SUFFIXES = tuple(suffix for row in FORMATS.values() for suffix in row.suffixes)
CERTAIN = tuple(suffix for row in FORMATS.values() for suffix in row.certain)
# Ambiguous suffixes: local files with them are recognized by content.
_VAGUE = (".tar", ".model", ".pkl", ".weights")


def format_of_name(name: str, beside: Sequence[str]) -> str | None:
    """The format of a file by its name. beside: the files of its folder; a TensorFlow index needs its data."""
    for row in FORMATS.values():
        if row.suffixes and name.endswith(row.suffixes):
            if row.name != "tensorflow":
                return row.name
            data = re.compile(re.escape(name.removesuffix(".index")) + r"\.data-\d{5}-of-\d{5}")
            return row.name if any(data.fullmatch(other) for other in beside) else None
    return None


def format_of_file(file: Path) -> str | None:
    """The format of a local file by its content."""
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
    """Whether to check the content of a file: its suffix is one for weights, a number, or empty."""
    suffix = PurePath(name).suffix
    return suffix.lower() in (*SUFFIXES, *_VAGUE, "") or suffix[1:].isdecimal()


def without_suffix(name: str) -> str:
    return re.sub(rf"({'|'.join(map(re.escape, (*SUFFIXES, '.json', *_VAGUE)))})$", "", name)
