"""Checkpoints on disk: which files below a path are one, and how each is opened.

Formats are told by content. A folder may be one checkpoint (shards and their index, a distributed
one), hold a file for each step, or a folder for each step; all of that may be mixed with files that
are no weights (optimiser, scheduler, arguments), which are passed over.
"""

import glob
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path, PurePath

from normgrowth.checkpoints.checkpoint import Checkpoint, LoadedCheckpoint, without_wrappers
from normgrowth.checkpoints.file_groups import PICKLED, WEIGHT_SUFFIXES, is_trainer_state
from normgrowth.checkpoints.formats import dcp as distributed
from normgrowth.checkpoints.formats import npz, pytorch, safetensors, tensorflow
from normgrowth.checkpoints.steps import LARGEST_STEP, sure_step
from normgrowth.errors import FileChanged, InputError
from normgrowth.foreign_files import foreign_kind, is_pointer

NO_WEIGHTS_FOLDER = re.compile(r"^(\.|optim|train$|__pycache__)", re.IGNORECASE)
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.")
TRAINER_STATE = "trainer_state.json"
_DEPTH = 6  # runs/name/lightning_logs/version_0/checkpoints/last.ckpt


@dataclass(frozen=True)
class Unit:
    """One checkpoint on disk, not opened."""

    path: Path  # what to call it: the file, or the folder where that holds nothing else
    main: Path  # the file to start from: the weights, an index, `.metadata`
    format: str

    def files(self) -> list[Path]:
        """All files that belong to it."""
        folder = self.main.parent
        if self.format == "distributed":
            return sorted(p for p in folder.iterdir() if p.is_file())
        if self.format == "tensorflow":
            return sorted(folder.glob(glob.escape(self.main.stem) + ".*"))
        if self.format.endswith("index"):
            return [
                self.main,
                *sorted(folder / shard for shard in set(safetensors.read_index(self.main).values())),
            ]
        return [self.main]

    def fingerprint(self) -> str:
        """Changes when the checkpoint does: name, size, time and a few bytes of each of its files.

        Not where they lie: a folder that was moved or mounted elsewhere holds the same checkpoints.
        """
        return ";".join([self.path.name, *map(_file_fingerprint, self.files())])

    def open(self) -> Checkpoint:
        checkpoint = self._read()
        if not checkpoint.tensors:
            raise InputError(f"{self.path}: holds no tensors")
        checkpoint.label = str(self.path)
        if (old_name := without_wrappers(checkpoint.tensors)) is not None:
            checkpoint = checkpoint.renamed(old_name)
        if isinstance(checkpoint, LoadedCheckpoint):
            checkpoint.reopen = self.open
        return checkpoint

    def _read(self) -> Checkpoint:
        try:
            return self._read_format()
        except FileChanged:
            raise
        except InputError as error:
            metadata = self.main if self.format == "distributed" else None  # a pickle, as it should be
            for file in self.files():
                if file != metadata and (kind := foreign_kind(file)):
                    raise InputError(f"{file}: {kind}") from error
            raise

    def _read_format(self) -> Checkpoint:
        try:
            match self.format:
                case "safetensors":
                    return safetensors.read_safetensors(self.main)
                case "safetensors-index":
                    return safetensors.read_sharded(self.main)
                case "pytorch":
                    return pytorch.read_pytorch(self.main)
                case "pytorch-index":
                    return pytorch.read_pytorch_sharded(self.main)
                case "npz":
                    return npz.read_npz(self.main)
                case "distributed":
                    return distributed.read_distributed(self.main.parent)
                case _:
                    return tensorflow.read_tensorflow(self.main)
        except OSError as error:
            raise InputError(f"{self.main}: cannot be read: {error.strerror or error}") from error

    def trainer_step(self) -> int | None:
        """The step that Hugging Face's Trainer writes beside its weights."""
        try:
            return step_of_trainer((self.main.parent / TRAINER_STATE).read_bytes())
        except OSError:
            return None

    @property
    def label(self) -> str:
        return str(self.path)

    @property
    def main_label(self) -> str:
        return str(self.main)

    @property
    def above(self) -> str:
        """The name of the folder that it lies in."""
        return self.path.absolute().parent.name

    @property
    def slow(self) -> bool:
        """Whether opening it takes seconds."""
        return self.format == "tensorflow"


def step_of_trainer(state: bytes) -> int | None:
    try:
        step = json.loads(state)["global_step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if type(step) is int and 0 <= step < LARGEST_STEP else None


def _file_fingerprint(file: Path) -> str:
    """Sampled, since two runs can have files of one name, size and (unpacked from an archive) time."""
    stat = file.stat()
    with file.open("rb") as opened:
        samples = []
        for place in (0, stat.st_size // 3, stat.st_size // 2, max(0, stat.st_size - 4096)):
            opened.seek(place)
            samples.append(opened.read(4096))
    digest = hashlib.sha256(b"".join(samples)).hexdigest()[:16]
    return f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}:{digest}"


def find_units(root: Path) -> list[Unit]:
    """Every checkpoint at or below a path, in the order of names; a link to one that was found is not another."""
    if not root.exists():
        raise InputError(f"{root}: no such file or folder")
    if root.is_file():
        format = _format(root)
        if format is None:
            unknown = (
                "neither safetensors, nor PyTorch, nor TensorFlow (told by its first bytes); is it truncated?"
            )
            raise InputError(f"{root}: {foreign_kind(root) or unknown}")
        return [Unit(root, root, format)]
    found: dict[Path, Unit] = {}
    for unit in sorted(_below(root, 0), key=lambda unit: unit.path.is_symlink() or unit.main.is_symlink()):
        found.setdefault(unit.main.resolve(), unit)
    return sorted(found.values(), key=lambda unit: unit.path)


def _below(folder: Path, depth: int) -> list[Unit]:
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from error
    units = _directly_in(folder, [p for p in inside if p.is_file()])
    if goes_deeper(folder.name, depth, [(unit.main.name, unit.format) for unit in units]):
        for child in inside:
            if child.is_dir() and not NO_WEIGHTS_FOLDER.match(child.name):
                units += _below(child, depth + 1)
    return units


def goes_deeper(folder: str, depth: int, found: Sequence[tuple[str, str]]) -> bool:
    """Whether to look into the folders of a folder in which these files and formats were found.

    What lies below a distributed checkpoint, or below the folder of one step with its weights, is part of it.
    """
    is_step = sure_step(folder) is not None and any(is_generic(name) for name, _ in found)
    return depth < _DEPTH and not is_step and not any(format == "distributed" for _, format in found)


def _directly_in(folder: Path, files: list[Path]) -> list[Unit]:
    if distributed.is_distributed(folder):
        return [Unit(folder, folder / ".metadata", "distributed")]
    found = grouped(
        [file.name for file in files],
        format_of=lambda name: _format(folder / name),
        shards_of=lambda name: set(safetensors.read_index(folder / name).values()),
        show=lambda name: str(folder / name),
    )
    alone = len(found) == 1
    return [
        Unit(folder if alone and is_generic(name) else folder / name, folder / name, format)
        for name, format in found
    ]


def grouped(
    names: Sequence[str],
    *,
    format_of: Callable[[str], str | None],
    shards_of: Callable[[str], Set[str]],
    show: Callable[[str], str],
) -> list[tuple[str, str]]:
    """The files of one folder that are a checkpoint each, or the index of one, with their formats."""
    found: list[tuple[str, str]] = []
    shards: set[str] = set()
    for name in names:
        if format := index_format(name):
            found.append((name, format))
            shards |= shards_of(name)
    for name in names:
        if name in shards or name.startswith(".") or is_trainer_state(name):
            continue
        suffix = PurePath(name).suffix
        if suffix.lower() not in WEIGHT_SUFFIXES and not suffix[1:].isdecimal():
            continue
        if (format := format_of(name)) is not None:
            if _SHARD.search(name):
                raise InputError(f"{show(name)}: a shard, but no *.index.json beside it says of what")
            found.append((name, format))
    # Folders often hold the same weights twice: as PyTorch's pickle, consolidated, averaged, in half precision.
    for usual in ("model.safetensors", "pytorch_model.bin"):
        if any(name.startswith(usual) for name, _ in found):
            return [
                (name, format)
                for name, format in found
                if name.startswith(usual) or sure_step(name) is not None
            ]
    return found


def is_generic(name: str) -> bool:
    """Named by habit and not by step, so that the folder's name says more."""
    return name.startswith(("model.safetensors", "pytorch_model", "consolidated", "model_state", "mp_rank"))


def index_format(name: str) -> str | None:
    if name.endswith(".safetensors.index.json"):
        return "safetensors-index"
    return "pytorch-index" if name.endswith(".bin.index.json") else None


def _format(file: Path) -> str | None:
    if (index := index_format(file.name)) is not None:
        return index
    if not file.is_file():
        return None
    try:
        if file.suffix == ".index" and tensorflow.is_tensorflow_index(file):
            return "tensorflow"
        if safetensors.is_safetensors(file) or file.suffix == ".safetensors":
            return "safetensors"
        if npz.is_npz(file):
            return "npz"
        is_pytorch = pytorch.is_pytorch(file) or file.suffix in {".pt", ".pth"}
        return "pytorch" if is_pytorch or (file.suffix in PICKLED and is_pointer(file)) else None
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error


def why_nothing(root: Path) -> str:
    """Why a folder in which no checkpoint was found may hold one all the same, or ""."""
    for file in islice(root.rglob("*.index"), 1000):
        if kind := foreign_kind(file):
            return f"{file} is {kind}"
        if not tensorflow.has_data(file):
            return f"{file} has no data file {file.stem}.data-00000-of-00001 next to it"
    return ""


def open_fetched(label: str, fetch: Callable[[Path], Path], scratch: Path | None) -> Checkpoint:
    """Have a checkpoint put into a new folder, open it, and remove it from the disk when it is closed."""
    folder = Path(tempfile.mkdtemp(prefix="normgrowth-", dir=scratch))
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        units = find_units(fetch(folder))
        if len(units) != 1:
            raise InputError(f"{label}: holds {len(units)} checkpoints, not one")
        checkpoint = units[0].open()
    except BaseException:
        remove()
        raise
    checkpoint.label, checkpoint.on_close = label, remove
    return checkpoint
