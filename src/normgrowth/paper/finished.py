"""A finished reproduction, which a second call returns without judging its claims and drawing its figures again.

    out/finished.json    the key of everything that the output depends on, and a checksum of each file of the output

The key covers the code: after a change of normgrowth, claims are judged and figures are drawn again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from normgrowth.errors import InputError, SchemaError
from normgrowth.paper.reproduction import Reproduction
from normgrowth.results import CLAIMS
from normgrowth.serialization.json_types import read_json
from normgrowth.workspace import write_json

FINISHED = "finished.json"
OUTPUT = (
    *("claims.json", "report.html", "figures/*", "stages/*/*.json", "stages/*/records.parquet"),
    *("stages/*/models/*/records.*", "stages/*/models/*/*/records.*"),
)
CODE = (".py", ".csv", ".tsv", ".css", ".js")
LIBRARIES = ("matplotlib", "numpy", "pyarrow", "scipy")  # that judge and draw


def key_of(request: Mapping[str, Any]) -> str:
    """The key of a request, with the code of normgrowth and the versions of the libraries."""
    found = hashlib.sha256(json.dumps(request, sort_keys=True).encode())
    for name in LIBRARIES:
        found.update(f"{name} {version(name)}\n".encode())
    package = Path(__file__).parent.parent
    for path in sorted(path for path in package.rglob("*") if path.suffix in CODE):
        found.update(f"{path.relative_to(package)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def mark_finished(folder: Path, key: str) -> None:
    write_json(folder / FINISHED, {"key": key, "files": dict(_checksums(folder))})


def finished(folder: Path, key: str) -> Reproduction | None:
    """The reproduction in the folder if it has this key and none of its files has changed; its stages were kept."""
    try:
        known = read_json(folder / FINISHED, dict)
    except SchemaError:
        return None
    if known.get("key") != key or known.get("files") != dict(_checksums(folder)):
        return None
    found = Reproduction.read(folder)
    kept = replace(found, stages=tuple(replace(one, status="kept", seconds=None) for one in found.stages))
    kept.write(folder)
    mark_finished(folder, key)
    return kept


def earlier_reproduction(folder: Path) -> Reproduction | None:
    """The claims that the folder has; None if there are none, or the file is damaged."""
    if not (folder / CLAIMS).is_file():
        return None
    try:
        return Reproduction.read(folder)
    except InputError:
        return None


def _checksums(folder: Path) -> Iterator[tuple[str, str]]:
    """The checksum of each file of the output, by its path."""
    for pattern in OUTPUT:
        for path in sorted(folder.glob(pattern)):
            yield path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()
