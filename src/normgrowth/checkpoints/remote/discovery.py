"""Find checkpoints on a web server or in a bucket.

The rules are those of `local_files`, but formats are recognized by names, because reading the content would take a
request for each file.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from urllib.parse import unquote

from normgrowth.checkpoints.file_groups import (
    NO_WEIGHTS_FOLDER,
    TRAINER_STATE,
    goes_deeper,
    group_files,
    is_generic,
)
from normgrowth.checkpoints.formats import safetensors
from normgrowth.checkpoints.formats.registry import FORMATS, SUFFIXES, format_of_name
from normgrowth.checkpoints.remote.buckets.object_store import Bucket
from normgrowth.checkpoints.remote.remote_file import SMALL_FILE, RemoteFile, path_of
from normgrowth.checkpoints.remote.session import RemoteSession
from normgrowth.checkpoints.remote.transport import AT_ONCE, FileInfo, FileStore, ListableStore
from normgrowth.checkpoints.remote.web.website import Website, redact_url
from normgrowth.checkpoints.safe_paths import stays_below
from normgrowth.errors import InputError

MOST_FOLDERS = 20_000
BUCKETS = ("s3", "gs")
_MAGIC = {"http": "*[", "https": "*[", "s3": "*?[", "gs": "*?["}  # in a web address, ? begins the query


def is_remote(part: str) -> bool:
    scheme, mark, _ = part.partition("://")
    if mark and scheme.isalnum() and scheme not in (*_MAGIC, "hf"):
        raise InputError(f"{scheme}:// is not supported; use {', '.join(_MAGIC)} or hf")
    return bool(mark) and scheme in _MAGIC


def find_remote(address: str, session: RemoteSession) -> list[tuple[PurePosixPath, RemoteFile]]:
    """Every checkpoint at or below an address or the matches of a pattern, each with its root."""
    found: list[tuple[PurePosixPath, RemoteFile]] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for store, name in _roots(address, session, threads):
            root = path_of(store.show(name) if name else store.show().rstrip("/"))
            files = [_named_file(store, name, session)] if name else _walk(store, session, threads)
            found += ((root, file) for file in sorted(files, key=lambda file: file.path))
        list(threads.map(lambda pair: pair[1].stat(), found))
    return found


def _roots(
    address: str, session: RemoteSession, threads: ThreadPoolExecutor
) -> list[tuple[ListableStore, str]]:
    """Folders with an empty name, and files as (folder, name)."""
    scheme, _, rest = address.partition("://")
    if scheme in BUCKETS and "@" in rest.partition("/")[0]:
        raise InputError(
            f"{redact_url(address)}: do not put credentials into the address; configure them on this machine"
        )
    path = rest.partition("?")[0].partition("#")[0] if scheme not in BUCKETS else rest
    first, *parts = path.split("/")
    if not first:
        raise InputError(f"{scheme}://: the host or bucket is missing")
    plain = next((i for i, part in enumerate(parts) if _has_magic(scheme, part)), None)
    if plain is not None:
        top = f"{scheme}://{'/'.join((first, *parts[:plain]))}/"
        store = (
            Website.of(top, session)[0]
            if scheme not in BUCKETS
            else Bucket(scheme, top.partition("://")[2].rstrip("/"), session)
        )
        matches = _matching(store, [part for part in parts[plain:] if part], threads)
        if not matches:
            raise InputError(f"{redact_url(address)}: nothing matches this pattern")
        return sorted(matches, key=lambda match: match[0].show(match[1]))
    if scheme in BUCKETS:
        if not stays_below(rest.rstrip("/")):
            raise InputError(f"{redact_url(address)}: has an empty name, . or .. in its path")
        bucket = Bucket(scheme, rest.rstrip("/"), session)
        parent, _, name = bucket.path.rpartition("/")
        is_file = [entry.name for entry in bucket.ls()] == [""]
        return [(Bucket(scheme, parent, session), name)] if is_file else [(bucket, "")]
    site, name = Website.of(address, session)
    if not name or site.query or format_of_name(name, (name,)):
        return [(site, name)]
    return [(site.child(name), "")]


def _has_magic(scheme: str, part: str) -> bool:
    return any(sign in part for sign in _MAGIC[scheme])


def _matching(
    top: ListableStore, pattern: Sequence[str], threads: ThreadPoolExecutor
) -> list[tuple[ListableStore, str]]:
    """The folders, and the files that may have weights, below a folder that match a pattern."""
    found: list[tuple[ListableStore, str]] = []
    level: list[tuple[ListableStore, Sequence[str]]] = [(top, pattern)]
    count = 0
    while level:
        count += len(level)
        if count > MOST_FOLDERS:
            raise _too_many(top)
        below: list[tuple[ListableStore, Sequence[str]]] = []
        for (store, (part, *rest)), listed in zip(
            level, threads.map(lambda item: item[0].ls(), level), strict=True
        ):
            for entry in listed:
                if part == "**":
                    if entry.is_folder and not NO_WEIGHTS_FOLDER.match(entry.name):
                        below.append((store.child(entry.name), (part, *rest)))
                    if not rest or not fnmatchcase(entry.name, rest[0]):
                        continue
                elif not fnmatchcase(entry.name, part):
                    continue
                left = rest[1:] if part == "**" else rest
                if left and entry.is_folder:
                    below.append((store.child(entry.name), left))
                elif not left and entry.is_folder:
                    found.append((store.child(entry.name), ""))
                elif not left and format_of_name(entry.name, [e.name for e in listed]):
                    found.append((store, entry.name))
        level = below
    return found


def _walk(top: ListableStore, session: RemoteSession, threads: ThreadPoolExecutor) -> list[RemoteFile]:
    """All checkpoints below a folder, searched one level of folders at a time."""
    files: list[RemoteFile] = []
    level, depth, count = [top], 0, 0
    while level:
        count += len(level)
        if count > MOST_FOLDERS:
            raise _too_many(top)
        results = list(threads.map(lambda store, depth=depth: _inside(store, depth, session), level))
        files += [file for found, _ in results for file in found]
        level, depth = [child for _, children in results for child in children], depth + 1
    return files


def _too_many(top: ListableStore) -> InputError:
    return InputError(f"{top.show()}: more than {MOST_FOLDERS} folders; choose a subfolder or a pattern")


def _inside(
    store: ListableStore, depth: int, session: RemoteSession
) -> tuple[list[RemoteFile], list[ListableStore]]:
    """The checkpoints directly in a folder, and the subfolders that may have others."""
    listed = store.ls()
    files = {entry.name: entry.info for entry in listed if not entry.is_folder}
    found = remote_files(store, files, session)
    children: list[ListableStore] = []
    kinds = [(file.name, file.format) for file in found]
    if goes_deeper(path_of(store.show()).name, depth, kinds):
        children = [
            store.child(entry.name)
            for entry in listed
            if entry.is_folder and not NO_WEIGHTS_FOLDER.match(entry.name)
        ]
    return found, children


def _named_file(store: ListableStore, name: str, session: RemoteSession) -> RemoteFile:
    """The checkpoint of a file that was given by name; its suffix determines the format."""
    files: dict[str, FileInfo | None] = {name: None}
    if name.endswith(".index"):
        files |= {entry.name: entry.info for entry in store.ls() if not entry.is_folder}
        files = {
            file: info for file, info in files.items() if file.startswith(f"{name.removesuffix('.index')}.")
        }
    format = format_of_name(name, list(files))
    if format is None and not getattr(store, "query", ""):  # with a query, the file can have any name
        raise InputError(
            f"{store.show(name)}: does not have the suffix of a checkpoint ({', '.join(SUFFIXES)})"
        )
    format = format or "safetensors"
    return _remote_file(store, name, format, False, files, session, {})


def remote_files(
    store: FileStore, files: Mapping[str, FileInfo | None], session: RemoteSession
) -> list[RemoteFile]:
    """The checkpoints among the files of a folder."""
    names = sorted(files)
    if ".metadata" in files and any(name.endswith(".distcp") for name in names):
        return [_remote_file(store, ".metadata", "distributed", True, files, session, {})]
    contents: dict[str, bytes] = {}

    def shards_of(name: str) -> set[str]:
        contents[name] = _weight_map(store, name, session)
        return set(safetensors.parse_index(contents[name], store.show(name)).values())

    found = group_files(
        names, format_of=lambda name: format_of_name(name, names), shards_of=shards_of, show=store.show
    )
    return [
        _remote_file(store, name, format, len(found) == 1 and is_generic(name), files, session, contents)
        for name, format in found
    ]


def _remote_file(
    store: FileStore,
    name: str,
    format: str,
    alone: bool,
    listed: Mapping[str, FileInfo | None],
    session: RemoteSession,
    contents: Mapping[str, bytes],
) -> RemoteFile:
    content = None
    if format == "distributed":
        wanted = [file for file in listed if file == name or file.endswith(".distcp")]
    elif format == "tensorflow":
        wanted = [file for file in listed if file.startswith(f"{name.removesuffix('.index')}.")]
    elif FORMATS[format].is_index:
        content = contents.get(name) or _weight_map(store, name, session)
        wanted = sorted(set(safetensors.parse_index(content, store.show(name)).values()))
    else:
        wanted = [name]
    files = {file: listed.get(file) for file in wanted}
    return RemoteFile(store, name, format, alone, files, content, TRAINER_STATE in listed, session)


def _weight_map(store: FileStore, name: str, session: RemoteSession) -> bytes:
    """The content of an index. Raises InputError if a shard, also when URL-decoded, is outside of its folder."""
    where = store.show(name)
    content = store.content(name, SMALL_FILE, where)
    for shard in set(safetensors.parse_index(content, where).values()):
        if not stays_below(shard) or not stays_below(unquote(shard)):
            raise InputError(f"{where}: refers to {shard[:200]!r}, a path outside its folder; refused")
    return session.weight_maps.setdefault(content, content)
