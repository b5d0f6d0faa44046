"""Buckets (S3 and what speaks its language, Google Cloud Storage) through fsspec, by exact ranges.

Whose keys, which region, which endpoint: what the usual configuration of this machine says; nothing of
it is kept here or goes along with a pickle. Where there are no keys, the bucket is asked as by anyone.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.hub import stays_below
from normgrowth.checkpoints.remote.remote_checkpoint import Bytes, Listed, Seen, Session
from normgrowth.checkpoints.remote.retry import TRANSIENT, Failure, patience, persist
from normgrowth.errors import InputError, raised_here

T = TypeVar("T")

EXTRA = {"s3": "s3", "gs": "gs"}  # scheme -> what to install
LIBRARIES = ("aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "gcsfs", "google", "s3fs")
KEYS = {
    "s3": "set it up with `aws configure`, or name a profile in AWS_PROFILE",
    "gs": "set it up with `gcloud auth application-default login`",
}


@dataclass(frozen=True)
class Bucket:
    """A folder of a bucket."""

    scheme: str
    path: str  # bucket/folder
    session: Session = field(default_factory=Session, compare=False, repr=False)

    def child(self, name: str) -> "Bucket":
        return Bucket(self.scheme, f"{self.path}/{name}", self.session)

    def show(self, file: str = "") -> str:
        return f"{self.scheme}://{self.path}/{file}" if file else f"{self.scheme}://{self.path}"

    def look(self, file: str, where: str) -> Seen:
        return _seen(self._ask(lambda fs: fs.info(f"{self.path}/{file}"), where))

    def read(
        self,
        file: str,
        start: int,
        stop: int,
        where: str,
        seen: Seen,
        into: Bytes | None = None,  # noqa: ARG002 - fsspec brings memory of its own
    ) -> Bytes:
        def ask(fs: Any) -> bytes:
            content = fs.cat_file(
                f"{self.path}/{file}", start=start, end=stop, timeout=patience(stop - start)
            )
            if len(content) != stop - start:
                reason = f"the bucket sends {len(content)} bytes where {stop - start} were asked for"
                raise Failure(
                    f"{reason}; is it truncated, or has it changed?", again=len(content) < seen.size
                )
            return content

        return np.frombuffer(self._ask(ask, where), np.uint8)

    def content(self, file: str, limit: int, where: str) -> bytes:
        seen = self.look(file, where)
        if seen.size > limit:
            raise InputError(f"{where}: has more than {limit} bytes, too many for what it is")
        return self.read(file, 0, seen.size, where, seen).tobytes() if seen.size else b""

    def check_unchanged(self, file: str, where: str, seen: Seen) -> None:
        """fsspec cannot ask for a range of this version and no other."""
        if self.look(file, where) == seen:
            return
        folder, _, name = f"{self.path}/{file}".rpartition("/")  # whose list may say it in other words
        if seen not in [
            entry.seen for entry in Bucket(self.scheme, folder, self.session).ls() if entry.name == name
        ]:
            raise InputError(f"{where}: has changed since it was first looked at; begin again")

    def ls(self) -> list[Listed]:
        """What lies directly in the folder; for the path of a file, that file under an empty name."""
        found = []
        for entry in self._ask(lambda fs: fs.ls(self.path, detail=True), self.show()):
            below = str(entry["name"]).rstrip("/").removeprefix(self.path)
            name, is_folder = below.removeprefix("/"), entry["type"] == "directory"
            if not name and not is_folder and not str(entry["name"]).endswith("/"):
                return [Listed("", False, _seen(entry))]
            if below.startswith("/") and name and "/" not in name and stays_below(name):
                found.append(Listed(name, is_folder, None if is_folder else _seen(entry)))
        return found

    def _ask(self, call: Callable[[Any], T], where: str) -> T:
        keyless, me = self.session.keyless, (os.getpid(), self.scheme)

        def attempt() -> T:
            try:
                try:
                    return call(_filesystem(*me, anyone=me in keyless))
                except Exception as error:
                    if not _is_keyless(error) or me in keyless:
                        raise
                    keyless.add(me)  # looking for keys takes seconds: not for every range
                    return call(_filesystem(*me, anyone=True))
            except Exception as error:
                if not _is_theirs(error):
                    raise
                raise self._failure(error) from None

        return persist(attempt, where)

    def _failure(self, error: Exception) -> Failure:
        """In our own words: the libraries' may have addresses and names of keys in them."""
        bucket = f"{self.scheme}://{self.path.partition('/')[0]}"
        status = _status(error)
        if isinstance(error, PermissionError) or status in (401, 403) or _is_keyless(error):
            how = KEYS[self.scheme]
            return Failure(f"{bucket} refuses access with the keys of this machine, or without any; {how}")
        if isinstance(error, FileNotFoundError) or status == 404:
            return Failure("there is no such file or folder, or no longer")
        if status == 416:
            return Failure("is shorter than it was when it was listed; has it changed?")
        if status is not None:
            return Failure(
                f"{bucket} answers with status {status}; try again later", again=status in TRANSIENT
            )
        kind = type(error).__name__
        if isinstance(error, TimeoutError) or "Timeout" in kind:
            return Failure(f"cannot read from {bucket}: no answer in time", again=True)
        if "ParamValidation" in kind or isinstance(error, ValueError):
            return Failure(
                f"{self.scheme}://bucket/folder is what an address looks like, with the bucket's full name"
            )
        return Failure(f"cannot read from {bucket} ({kind}); check the network and the endpoint", again=True)


def _seen(entry: dict[str, Any]) -> Seen:
    """S3 says ETag and LastModified, Google etag and generation."""
    tags = (entry.get(key) for key in ("ETag", "etag", "generation", "LastModified", "updated"))
    return Seen(int(entry["size"] or 0), next((str(tag) for tag in tags if tag), ""))


def _status(error: BaseException | None) -> int | None:
    """Of the answer behind an error, or behind what caused it."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):  # botocore's
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if str(getattr(error, "code", "")).isdecimal():  # gcsfs'
            return int(getattr(error, "code", 0))
        error = error.__cause__
    return None


def _is_theirs(error: Exception) -> bool:
    """Whether it is about the bucket, the network or the address. Anything else is a mistake here, and stays one."""
    library = type(error).__module__.partition(".")[0] in LIBRARIES
    return library or (isinstance(error, OSError | ValueError) and not raised_here(error))


def _is_keyless(error: Exception) -> bool:
    return type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


@lru_cache(maxsize=8)
def _filesystem(process: int, scheme: str, anyone: bool) -> Any:  # noqa: ARG001 - each process has its own
    """One for all threads: fsspec itself makes one for each, and each would look for keys again."""
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if scheme == "s3":
        once = {"retries": {"total_max_attempts": 1}}  # trying again is done here
        times = {"connect_timeout": attempts.TIMEOUT, "read_timeout": attempts.TIMEOUT}
        options |= {"anon": anyone, "config_kwargs": once | times}
    elif anyone:
        options["token"] = "anon"
    try:
        import fsspec

        filesystem = fsspec.filesystem(scheme, **options)
    except ImportError:
        raise InputError(
            f'{scheme}:// needs a library that is not installed; pip install "normgrowth[{EXTRA[scheme]}]"'
        ) from None
    filesystem.retries = 1
    return filesystem
