"""Files that are not readable as weights: recognize their type by the first bytes, and say what to do."""

from pathlib import Path

_STARTS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
    (b"\x89HDF\r\n", "an HDF5 file (Keras), which is not supported: save the weights as safetensors"),
    (b"\x93NUMPY", "a single numpy array: save the weights by name, with numpy.savez"),
    (b"<", "a web page or XML, not weights: was the download refused?"),
    (b"GGUF", "a GGUF file, which is not supported: trace the checkpoints that it was converted from"),
)
_PICKLES = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_PICKLE = "a plain pickle, not a file of torch.save: load it, and save the weights with torch.save"


def foreign_kind(path: Path) -> str:
    """The type of a file that is not readable as weights, and what to do; "" if the type is unknown."""
    try:
        if not path.is_file():  # opening a pipe waits
            return ""
        with path.open("rb") as file:
            start = file.read(64)
    except OSError:
        return ""
    if (
        start.startswith(_PICKLES) and b"\x8a\nl\xfc\x9c" not in start
    ):  # the magic number of torch's legacy format
        return _PICKLE
    return next((kind for mark, kind in _STARTS if start.lstrip(b"\xef\xbb\xbf \r\n").startswith(mark)), "")


def is_pointer(path: Path) -> bool:
    """Whether the file is a Git LFS pointer instead of the content."""
    return foreign_kind(path) == _STARTS[0][1]
