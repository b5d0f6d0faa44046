"""Checkpoints on disk: find those below a path, and open them.

Formats are recognized by content. A folder can be one checkpoint (shards and their index, or a distributed checkpoint),
or have a file or a folder for each step. Other files (optimizer, scheduler, arguments) are ignored.
"""

import glob
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.file_groups import (
    NO_WEIGHTS_FOLDER,
    TRAINER_STATE,
    goes_deeper,
    group_files,
    is_generic,
    step_of_trainer,
)
from normgrowth.checkpoints.foreign_files import foreign_kind
from normgrowth.checkpoints.formats import dcp, safetensors
from normgrowth.checkpoints.formats.registry import (
    CERTAIN,
    FORMATS,
    format_of_file,
    format_of_name,
    may_hold_weights,
)
from normgrowth.checkpoints.formats.tensorflow.reader import has_data
from normgrowth.checkpoints.steps import explicit_step
from normgrowth.checkpoints.storage.mapped_file import unreadable
from normgrowth.errors import FileChanged, InputError
from normgrowth.text import did_you_mean

LARGEST_TRAINER_STATE = 32 << 20  # bytes; as Python objects they take about ten times as much


@dataclass(frozen=True)
class LocalFile:
    """One checkpoint on disk, not opened."""

    path: Path  # for display: the file, or its folder if that has only this checkpoint
    main: Path  # the file to open: weights, an index, or `.metadata`
    format: str

    def files(self) -> list[Path]:
        """All files of the checkpoint."""
        folder = self.main.parent
        if self.format == "distributed":
            return sorted(p for p in folder.iterdir() if p.is_file())
        if self.format == "tensorflow":
            return sorted(folder.glob(glob.escape(self.main.stem) + ".*"))
        if FORMATS[self.format].is_index:
            return [
                self.main,
                *sorted(folder / shard for shard in set(safetensors.read_index(self.main).values())),
            ]
        return [self.main]

    def fingerprint(self) -> str:
        """Text that changes if the checkpoint changes: name, size, time and a few bytes of each of its files.

        It does not depend on the path, so a moved or remounted folder has the same checkpoints.
        """
        return ";".join([self.path.name, *map(_file_fingerprint, self.files())])

    def open(self) -> Checkpoint:
        checkpoint = self._read()
        checkpoint.label = str(self.path)
        return checkpoint.without_wrappers()

    def _read(self) -> Checkpoint:
        if why := why_no_file(self.main):
            raise InputError(f"{self.main}: {why}")
        try:
            return FORMATS[self.format].open(self.main)
        except FileChanged:
            raise
        except OSError as error:
            raise unreadable(self.main, error) from error
        except InputError as error:
            metadata = self.main if self.format == "distributed" else None  # this file is a pickle by design
            for file in self.files():
                if file != metadata and (kind := foreign_kind(file)):
                    raise InputError(f"{file}: {kind}") from error
            raise

    def trainer_step(self) -> int | None:
        """The step that the Hugging Face Trainer writes next to the weights."""
        content = read_trainer_state(self.main.parent / TRAINER_STATE)
        return None if content is None else step_of_trainer(content)

    @property
    def label(self) -> str:
        return str(self.path)

    @property
    def main_label(self) -> str:
        return str(self.main)

    @property
    def above(self) -> str:
        """The name of the parent folder."""
        return self.path.absolute().parent.name


def _file_fingerprint(file: Path) -> str:
    """Name, size, time and a digest of samples, because files of two runs can have equal name, size and time."""
    if why := why_no_file(file):
        return f"{file.name}:{why}"
    stat = file.stat()
    with file.open("rb") as opened:
        samples = []
        for place in (0, stat.st_size // 3, stat.st_size // 2, max(0, stat.st_size - 4096)):
            opened.seek(place)
            samples.append(opened.read(4096))
    digest = hashlib.sha256(b"".join(samples)).hexdigest()[:16]
    return f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}:{digest}"


def find_checkpoints(root: Path) -> list[LocalFile]:
    """Every checkpoint at or below a path, in the order of names; links to a checkpoint are not listed again."""
    if why := why_no_file(root):
        raise InputError(f"{root}: {why}")
    if not root.exists():
        raise InputError(f"{root}: no such file or folder{did_you_mean(root)}")
    if root.is_file():
        format = format_of_file(root)
        if format is None:
            unknown = "its content is neither safetensors, nor PyTorch, nor TensorFlow; is it truncated?"
            raise InputError(f"{root}: {foreign_kind(root) or unknown}")
        return [LocalFile(root, root, format)]
    found: dict[Path, LocalFile] = {}
    for file in sorted(_below(root, 0), key=lambda file: file.path.is_symlink() or file.main.is_symlink()):
        found.setdefault(file.main.absolute() if why_no_file(file.main) else file.main.resolve(), file)
    return sorted(found.values(), key=lambda file: file.path)


def _below(folder: Path, depth: int) -> list[LocalFile]:
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error
    files = _directly_in(
        folder, [p for p in inside if p.is_file() or (_is_expected(p.name) and why_no_file(p))]
    )
    if goes_deeper(folder.name, depth, [(file.main.name, file.format) for file in files]):
        for child in inside:
            if child.is_dir() and not NO_WEIGHTS_FOLDER.match(child.name):
                files += _below(child, depth + 1)
    return files


def _directly_in(folder: Path, files: list[Path]) -> list[LocalFile]:
    if dcp.is_dcp_folder(folder):
        return [LocalFile(folder, folder / ".metadata", "distributed")]
    found = group_files(
        [file.name for file in files],
        format_of=lambda name: _format_in(folder, name),
        shards_of=lambda name: set(safetensors.read_index(folder / name).values()),
        show=lambda name: str(folder / name),
    )
    alone = len(found) == 1
    return [
        LocalFile(folder if alone and is_generic(name) else folder / name, folder / name, format)
        for name, format in found
    ]


def _format_in(folder: Path, name: str) -> str | None:
    if why_no_file(folder / name):
        return format_of_name(name, ()) or "pytorch"  # not opened, because that fails
    return format_of_file(folder / name)


def _is_expected(name: str) -> bool:
    """Whether a name alone shows that a file has weights, so that a file that cannot be read is not ignored."""
    return may_hold_weights(name) and (
        name.endswith(CERTAIN) or is_generic(name) or explicit_step(name) is not None
    )


def why_no_file(path: Path) -> str:
    """Why a path that exists is neither a file nor a folder: a link without its target, a pipe, a device; or ""."""
    if path.exists():
        return "" if path.is_file() or path.is_dir() else "is a pipe, a socket or a device, not a file"
    return f"is a link whose target {path.readlink()} is missing" if path.is_symlink() else ""


def read_trainer_state(path: Path) -> bytes | None:
    """The content of a trainer_state.json; None if it is not a regular file or too large to be parsed."""
    try:
        if not path.is_file():  # reading a pipe waits, a device has no end
            return None
        with path.open("rb") as file:
            content = file.read(LARGEST_TRAINER_STATE + 1)
    except OSError:
        return None
    return content if len(content) <= LARGEST_TRAINER_STATE else None


def why_nothing(root: Path) -> str:
    """Why the checkpoint in a folder was not recognized; "" if there is none."""
    for file in islice(root.rglob("*.index"), 1000):
        if kind := foreign_kind(file):
            return f"{file} is {kind}"
        if not has_data(file):
            return f"{file} has no data file {file.stem}.data-00000-of-00001 next to it"
    return ""


def open_fetched(label: str, fetch: Callable[[Path], Path], scratch: Path | None) -> Checkpoint:
    """Download a checkpoint into a new folder and open it; closing it removes the folder."""
    folder = Path(tempfile.mkdtemp(prefix="normgrowth-", dir=scratch))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        files = find_checkpoints(fetch(folder))
        if len(files) != 1:
            raise InputError(f"{label}: expected one checkpoint, got {len(files)}")
        checkpoint = files[0].open()
    except BaseException:
        remove()
        raise
    checkpoint.label, checkpoint.on_close = label, remove
    return checkpoint
