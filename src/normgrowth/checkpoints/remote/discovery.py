"""Which files on a web server or in a bucket are checkpoints.

As `folder` does for this machine and by the same rules, but formats are told by names: a look into each
file would be a request for each.
"""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from urllib.parse import unquote

from normgrowth.checkpoints.file_groups import PICKLED
from normgrowth.checkpoints.formats import safetensors
from normgrowth.checkpoints.local_files import (
    NO_WEIGHTS_FOLDER,
    TRAINER_STATE,
    goes_deeper,
    grouped,
    index_format,
    is_generic,
)
from normgrowth.checkpoints.remote import hub
from normgrowth.checkpoints.remote.object_store import Bucket
from normgrowth.checkpoints.remote.remote_checkpoint import AT_ONCE, Folder, Seen, Session
from normgrowth.checkpoints.remote.remote_file import SMALL_FILE, Reading, RemoteUnit, path_of
from normgrowth.checkpoints.remote.website import Website, shown
from normgrowth.errors import InputError

MOST_FOLDERS = 20_000
_NAMED = (".safetensors", *PICKLED, ".index", ".index.json")
BUCKETS = ("s3", "gs")
_MAGIC = {"http": "*[", "https": "*[", "s3": "*?[", "gs": "*?["}  # a web address ends at its ?


def is_remote(part: str) -> bool:
    scheme, mark, _ = part.partition("://")
    if mark and scheme.isalnum() and scheme not in (*_MAGIC, "hf"):
        raise InputError(f"{scheme}://: not an address that is read here; {', '.join(_MAGIC)} and hf are")
    return bool(mark) and scheme in _MAGIC


def find_remote(address: str, reading: Reading) -> list[tuple[PurePosixPath, RemoteUnit]]:
    """Every checkpoint at or below an address, or below each of those that a pattern matches; with that address."""
    found: list[tuple[PurePosixPath, RemoteUnit]] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for place, name in _roots(address, reading.session, threads):
            root = path_of(place.show(name) if name else place.show().rstrip("/"))
            units = [_named_unit(place, name, reading)] if name else _walk(place, reading, threads)
            found += ((root, unit) for unit in sorted(units, key=lambda unit: unit.path))
        list(threads.map(lambda pair: pair[1].look(), found))
    return found


def _roots(address: str, session: Session, threads: ThreadPoolExecutor) -> list[tuple[Folder, str]]:
    """Folders, and files with the folder that they lie in."""
    scheme, _, rest = address.partition("://")
    if scheme in BUCKETS and "@" in rest.partition("/")[0]:
        raise InputError(
            f"{shown(address)}: keys do not belong into an address; configure them on this machine"
        )
    path = rest.partition("?")[0].partition("#")[0] if scheme not in BUCKETS else rest
    first, *parts = path.split("/")
    if not first:
        raise InputError(f"{scheme}://: names no host or bucket")
    plain = next((i for i, part in enumerate(parts) if _has_magic(scheme, part)), None)
    if plain is not None:
        top = f"{scheme}://{'/'.join((first, *parts[:plain]))}/"
        place = (
            Website.of(top, session)[0]
            if scheme not in BUCKETS
            else Bucket(scheme, top.partition("://")[2].rstrip("/"), session)
        )
        matches = _matching(place, [part for part in parts[plain:] if part], threads)
        if not matches:
            raise InputError(f"{shown(address)}: nothing matches this pattern")
        return sorted(matches, key=lambda match: match[0].show(match[1]))
    if scheme in BUCKETS:
        if not hub.stays_below(rest.rstrip("/")):
            raise InputError(f"{shown(address)}: has an empty name, a . or .. between its slashes")
        bucket = Bucket(scheme, rest.rstrip("/"), session)
        parent, _, name = bucket.path.rpartition("/")
        is_file = [entry.name for entry in bucket.ls()] == [""]
        return [(Bucket(scheme, parent, session), name)] if is_file else [(bucket, "")]
    site, name = Website.of(address, session)
    if not name or site.query or index_format(name) or _format(name, (name,)):
        return [(site, name)]
    return [(site.child(name), "")]


def _has_magic(scheme: str, part: str) -> bool:
    return any(sign in part for sign in _MAGIC[scheme])


def _matching(top: Folder, pattern: Sequence[str], threads: ThreadPoolExecutor) -> list[tuple[Folder, str]]:
    """What a pattern matches below a folder: folders, and files that may hold weights."""
    found: list[tuple[Folder, str]] = []
    level: list[tuple[Folder, Sequence[str]]] = [(top, pattern)]
    count = 0
    while level:
        count += len(level)
        if count > MOST_FOLDERS:
            raise _too_many(top)
        below: list[tuple[Folder, Sequence[str]]] = []
        for (place, (part, *rest)), listed in zip(
            level, threads.map(lambda item: item[0].ls(), level), strict=True
        ):
            for entry in listed:
                if part == "**":
                    if entry.is_folder and not NO_WEIGHTS_FOLDER.match(entry.name):
                        below.append((place.child(entry.name), (part, *rest)))
                    if not rest or not fnmatchcase(entry.name, rest[0]):
                        continue
                elif not fnmatchcase(entry.name, part):
                    continue
                left = rest[1:] if part == "**" else rest
                if left and entry.is_folder:
                    below.append((place.child(entry.name), left))
                elif not left and entry.is_folder:
                    found.append((place.child(entry.name), ""))
                elif not left and (index_format(entry.name) or _format(entry.name, [e.name for e in listed])):
                    found.append((place, entry.name))
        level = below
    return found


def _walk(top: Folder, reading: Reading, threads: ThreadPoolExecutor) -> list[RemoteUnit]:
    """Folder by folder, a level at a time."""
    units: list[RemoteUnit] = []
    level, depth, count = [top], 0, 0
    while level:
        count += len(level)
        if count > MOST_FOLDERS:
            raise _too_many(top)
        results = list(threads.map(lambda place, depth=depth: _inside(place, depth, reading), level))
        units += [unit for found, _ in results for unit in found]
        level, depth = [child for _, children in results for child in children], depth + 1
    return units


def _too_many(top: Folder) -> InputError:
    return InputError(f"{top.show()}: more than {MOST_FOLDERS} folders; name a part of it, or a pattern")


def _inside(place: Folder, depth: int, reading: Reading) -> tuple[list[RemoteUnit], list[Folder]]:
    """The checkpoints directly in a folder, and the folders below it that may hold others."""
    listed = place.ls()
    files = {entry.name: entry.seen for entry in listed if not entry.is_folder}
    units = _units(place, files, reading)
    children: list[Folder] = []
    if goes_deeper(path_of(place.show()).name, depth, [(unit.name, unit.format) for unit in units]):
        children = [
            place.child(entry.name)
            for entry in listed
            if entry.is_folder and not NO_WEIGHTS_FOLDER.match(entry.name)
        ]
    return units, children


def _named_unit(place: Folder, name: str, reading: Reading) -> RemoteUnit:
    """A file that was named: what it is called says what it is."""
    files: dict[str, Seen | None] = {name: None}
    if name.endswith(".index"):
        files |= {entry.name: entry.seen for entry in place.ls() if not entry.is_folder}
        files = {
            file: seen for file, seen in files.items() if file.startswith(f"{name.removesuffix('.index')}.")
        }
    format = index_format(name) or _format(name, list(files))
    if format is None and not getattr(place, "query", ""):  # what a query brings may be called anything
        raise InputError(f"{place.show(name)}: not named as a checkpoint is ({', '.join(_NAMED)})")
    format = format or "safetensors"
    return _unit(place, name, format, False, files, reading, {})


def _units(place: Folder, files: dict[str, Seen | None], reading: Reading) -> list[RemoteUnit]:
    names = sorted(files)
    if ".metadata" in files and any(name.endswith(".distcp") for name in names):
        return [_unit(place, ".metadata", "distributed", True, files, reading, {})]
    contents: dict[str, bytes] = {}

    def shards_of(name: str) -> set[str]:
        contents[name] = _weight_map(place, name, reading)
        return set(safetensors.parse_index(contents[name], place.show(name)).values())

    found = grouped(names, format_of=lambda name: _format(name, names), shards_of=shards_of, show=place.show)
    return [
        _unit(place, name, format, len(found) == 1 and is_generic(name), files, reading, contents)
        for name, format in found
    ]


def _unit(
    place: Folder,
    name: str,
    format: str,
    alone: bool,
    listed: Mapping[str, Seen | None],
    reading: Reading,
    contents: Mapping[str, bytes],
) -> RemoteUnit:
    content = None
    if format == "distributed":
        wanted = [file for file in listed if file == name or file.endswith(".distcp")]
    elif format == "tensorflow":
        wanted = [file for file in listed if file.startswith(f"{name.removesuffix('.index')}.")]
    elif format.endswith("index"):
        content = contents.get(name) or _weight_map(place, name, reading)
        wanted = sorted(set(safetensors.parse_index(content, place.show(name)).values()))
    else:
        wanted = [name]
    files = {file: listed.get(file) for file in wanted}
    return RemoteUnit(place, name, format, alone, files, content, TRAINER_STATE in listed, reading)


def _weight_map(place: Folder, name: str, reading: Reading) -> bytes:
    """The content of an index, each of whose shards lies below its folder, however it is spelled."""
    where = place.show(name)
    content = place.content(name, SMALL_FILE, where)
    for shard in set(safetensors.parse_index(content, where).values()):
        if not hub.stays_below(shard) or not hub.stays_below(unquote(shard)):
            raise InputError(f"{where}: names {shard[:200]!r}, a path outside its folder; refused")
    return reading.indexes.setdefault(content, content)


def _format(name: str, beside: Sequence[str]) -> str | None:
    if name.endswith(".safetensors"):
        return "safetensors"
    if name.endswith(PICKLED):
        return "pytorch"
    data = re.compile(re.escape(name.removesuffix(".index")) + r"\.data-\d{5}-of-\d{5}")
    is_tensorflow = name.endswith(".index") and any(data.fullmatch(other) for other in beside)
    return "tensorflow" if is_tensorflow else None
