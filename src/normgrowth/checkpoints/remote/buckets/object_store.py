"""Buckets (S3 and compatible stores, Google Cloud Storage), read by exact ranges through obstore.

A bucket pickles as its address. Messages of obstore may contain addresses and names of keys, so they are only searched
for a status and never shown.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from normgrowth import engine
from normgrowth.checkpoints.remote.buckets.bucket_access import NO_GOOGLE_KEYS, SETUP
from normgrowth.checkpoints.remote.retry import TRANSIENT, Failure, check_speed, retry
from normgrowth.checkpoints.remote.session import RemoteSession
from normgrowth.checkpoints.remote.transport import Bytes, DirectoryEntry, FileInfo
from normgrowth.checkpoints.safe_paths import stays_below
from normgrowth.errors import InputError

T = TypeVar("T")

CHANGED = "has changed since it was opened; run the command again"
TIME = "time "  # a file without an ETag gets a tag made from its time


class _OtherVersion(Exception):
    """The ETag of a file is not the requested one."""


@dataclass(frozen=True)
class Bucket:
    """A folder of a bucket."""

    scheme: str
    path: str  # bucket/folder
    session: RemoteSession = field(default_factory=RemoteSession, compare=False, repr=False)

    def child(self, name: str) -> "Bucket":
        return Bucket(self.scheme, f"{self.path}/{name}", self.session)

    def show(self, file: str = "") -> str:
        return f"{self.scheme}://{self.path}/{file}" if file else f"{self.scheme}://{self.path}"

    def _key(self, file: str = "") -> str:
        folder = self.path.partition("/")[2]
        return "/".join(part for part in (folder, file) if part)

    def stat(self, file: str, where: str) -> FileInfo:
        return _file_info(self._ask(lambda store: store.head(self._key(file)), where))

    def read(
        self, file: str, start: int, stop: int, where: str, info: FileInfo, into: Bytes | None = None
    ) -> Bytes:
        try:
            content = np.empty(stop - start, np.uint8) if into is None else into[: stop - start]
        except (MemoryError, ValueError):
            raise InputError(f"{where}: {stop - start} bytes do not fit into memory") from None
        view, got = content.data, 0

        def ask(store: Any) -> None:
            nonlocal got
            begun, had = time.monotonic(), got
            tag = self.session.etags.get((self.show(file), info.tag), info.tag)
            condition = {} if tag.startswith(TIME) else {"if_match": tag}
            answer = store.get(self._key(file), options={"range": (start + got, stop), **condition})
            if _file_info(answer.meta) != FileInfo(info.size, tag):  # a store may ignore the condition
                raise Failure(CHANGED)
            if answer.range != (start + got, stop):
                raise Failure("the bucket sends other bytes than requested", retryable=True)
            for chunk in answer.stream(min_chunk_size=1):
                view[got : got + len(chunk)] = memoryview(chunk)
                got += len(chunk)
                engine.check_cancelled()
                if got < len(view):
                    check_speed(begun, got - had)
            if got < len(view):
                raise Failure("the connection is lost repeatedly", retryable=True)

        try:
            self._ask(ask, where)
        except _OtherVersion:
            self._check_etag(file, where, info)
            self._ask(ask, where)
        return content

    def _check_etag(self, file: str, where: str, info: FileInfo) -> None:
        """Raise InputError if the file has changed; a store may only list another ETag than in its responses.

        The file is requested before the list, so if the list is unchanged, both ETags belong to the same version.
        """
        now = self.stat(file, where)
        folder, _, name = f"{self.path}/{file}".rpartition("/")
        listed = {entry.name: entry.info for entry in Bucket(self.scheme, folder, self.session).ls()}
        if now.tag == info.tag or listed.get(name) != info:
            raise InputError(f"{where}: {CHANGED}")
        self.session.etags[self.show(file), info.tag] = now.tag

    def content(self, file: str, limit: int, where: str) -> bytes:
        info = self.stat(file, where)
        if info.size > limit:
            raise InputError(
                f"{where}: has more than {limit} bytes, which is too large for this kind of file"
            )
        return self.read(file, 0, info.size, where, info).tobytes() if info.size else b""

    def ls(self) -> list[DirectoryEntry]:
        """The entries of the folder; for the path of a file, the file with an empty name."""
        folder = self._key()
        found = self._ask(lambda store: store.list_with_delimiter(folder or None), self.show())
        if folder and not found["common_prefixes"] and not found["objects"]:
            return [DirectoryEntry("", False, self.stat("", self.show()))]
        prefix = f"{folder}/" if folder else ""
        listed = [DirectoryEntry(path.removeprefix(prefix), True) for path in found["common_prefixes"]]
        # The marker of a folder is an object with the folder's own path.
        objects = [meta for meta in found["objects"] if meta["path"] != folder]
        listed += [
            DirectoryEntry(meta["path"].removeprefix(prefix), False, _file_info(meta)) for meta in objects
        ]
        return [entry for entry in listed if stays_below(entry.name)]

    def _ask(self, call: Callable[[Any], T], where: str) -> T:
        bucket = self.path.partition("/")[0]

        def attempt() -> T:
            store = self.session.store(self.scheme, bucket)
            from obstore.exceptions import BaseError, PreconditionError

            try:
                return call(store)
            except PreconditionError:
                raise _OtherVersion from None
            except (BaseError, FileNotFoundError) as error:
                if NO_GOOGLE_KEYS in str(error):
                    self.session.store(self.scheme, bucket, anonymous=True)
                    return attempt()
                raise self._failure(error) from None

        return retry(attempt, where)

    def _failure(self, error: Exception) -> Failure:
        from obstore.exceptions import InvalidPathError

        text = str(error)
        bucket = f"{self.scheme}://{self.path.partition('/')[0]}"
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else None
        if isinstance(error, FileNotFoundError) or status == 404:
            return Failure("there is no such file or folder (any more)")
        if status in (401, 403) or "token request" in text or "redential" in text:
            how = SETUP[self.scheme]
            return Failure(f"{bucket} refuses access with the credentials of this machine; {how}")
        if isinstance(error, InvalidPathError):
            return Failure(
                "has a name that is not a valid path (it contains // or ..); choose a folder or pattern without it"
            )
        if status == 416:
            return Failure("is shorter than listed; has it changed?")
        if status is not None:
            return Failure(
                f"{bucket} answers with status {status}; try again later", retryable=status in TRANSIENT
            )
        if "NotPartial" in text:
            return Failure(f"{bucket} does not support range requests; download the file")
        if "kind: Timeout" in text:
            return Failure(f"cannot read from {bucket}: timeout", retryable=True)
        if "kind: Interrupted" in text:
            return Failure(f"cannot read from {bucket}: the connection is lost repeatedly", retryable=True)
        return Failure(f"cannot read from {bucket}; check the network and the endpoint", retryable=True)


def _file_info(meta: Mapping[str, Any]) -> FileInfo:
    return FileInfo(meta["size"], meta["e_tag"] or f"{TIME}{meta['last_modified'].isoformat()}")
