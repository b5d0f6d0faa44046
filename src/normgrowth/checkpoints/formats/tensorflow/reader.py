"""Local bundles: `PREFIX.index` with its data files."""

import re
from pathlib import Path

from normgrowth.checkpoints.checkpoint import MappedCheckpoint, Ranges
from normgrowth.checkpoints.formats.tensorflow.bundle import INDEX, BundleFiles, read_bundle
from normgrowth.checkpoints.formats.tensorflow.table import TABLE_END
from normgrowth.checkpoints.storage.mapped_file import FileBytes, FileState
from normgrowth.errors import InputError

DATA = re.compile(r"\.data-\d{5}-of-\d{5}")


def is_tensorflow_index(path: Path) -> bool:
    """Whether the content is a table, and data files with the same prefix are next to it."""
    if path.suffix != INDEX or not path.is_file() or not has_data(path):
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(TABLE_END)))
        return file.read() == TABLE_END


def has_data(index: Path) -> bool:
    return bool(_data_files(index))


def _data_files(index: Path) -> dict[str, Path]:
    """Suffix after the prefix -> data file."""
    found = {path.name.removeprefix(index.stem): path for path in index.parent.iterdir()}
    return {end: path for end, path in found.items() if DATA.fullmatch(end)}


def read_tensorflow(prefix_or_index: Path) -> MappedCheckpoint:
    is_index = prefix_or_index.suffix == INDEX
    index = prefix_or_index if is_index else prefix_or_index.with_name(prefix_or_index.name + INDEX)
    if not index.is_file():
        raise InputError(f"{index}: no such file")
    folder, prefix, data = index.parent, index.stem, _data_files(index)
    if not data:
        raise InputError(f"{index}: its data file {prefix}.data-00000-of-00001 is missing")
    states = {end: FileState.of(path.stat()) for end, path in {**data, INDEX: index}.items()}

    def read(end: str, start: int, stop: int) -> bytes:
        with FileBytes(folder / f"{prefix}{end}") as file:
            return file[start:stop]

    sizes = {end: state[1] for end, state in states.items()}
    found = read_bundle(BundleFiles(sizes, read, lambda end: str(folder / f"{prefix}{end}")))
    ranges = Ranges(
        {
            name: tuple(piece._replace(file=f"{prefix}{piece.file}") for piece in pieces)
            for name, pieces in found.ranges.items()
        }
    )
    return MappedCheckpoint(
        str(folder / prefix),
        found.tensors,
        ranges,
        folder,
        step=found.step,
        reads_whole=True,
        states={f"{prefix}{end}": state for end, state in states.items()},
        notes=found.notes,
        checksums={(f"{prefix}{file}", offset): crc for (file, offset), crc in found.checksums.items()},
    )
