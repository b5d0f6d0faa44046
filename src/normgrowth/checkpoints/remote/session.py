"""State that the remote checkpoints of one series share. Credentials and queries never leave the process."""

import os
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from normgrowth.checkpoints.remote.web.connections import Pool, origin, saved_login

if TYPE_CHECKING:
    from normgrowth.checkpoints.checkpoint import Ranges, Tensor
    from normgrowth.checkpoints.remote.buckets.bucket_access import Store
    from normgrowth.checkpoints.remote.remote_checkpoint import RemoteCheckpoint

T = TypeVar("T")


class RemoteSession:
    """Connections, credentials and indexes. Pickles without them: another process uses its own credentials.

    scratch: folder for checkpoints that cannot be read by ranges and are downloaded.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self.scratch = scratch
        self._index: tuple[dict[str, Tensor], Ranges] | None = None
        self.weight_maps: dict[bytes, bytes] = {}  # contents of *.index.json, without duplicates
        self.pool = Pool()
        self.logins: dict[tuple[str, str | None, int], str] = {}  # scheme, host and port -> header, or empty
        self.queries: dict[str, str] = {}  # digest -> query of a signed address
        self.etags: dict[tuple[str, str], str] = {}  # address and listed ETag -> the ETag that requests take
        self._stores: dict[tuple[str, str], Store] = {}  # scheme and bucket -> store with this machine's keys
        self._lock = threading.Lock()

    def login(self, url: str) -> str | None:
        """The Authorization header: from the address itself, or from ~/.netrc; None without a login."""
        place = origin(url)
        if place not in self.logins:
            self.logins[place] = saved_login(place[1] or "") or ""
        return self.logins[place] or None

    def store(self, scheme: str, bucket: str, *, anonymous: bool = False) -> "Store":
        """The open bucket. anonymous: without credentials, also for later calls."""
        from normgrowth.checkpoints.remote.buckets.bucket_access import open_store

        with self._lock:
            if anonymous or (scheme, bucket) not in self._stores:
                self._stores[scheme, bucket] = open_store(scheme, bucket, anonymous=anonymous)
            return self._stores[scheme, bucket]

    def share_index(self, opened: "RemoteCheckpoint") -> "RemoteCheckpoint":
        """Replace an index that equals the last one by the same object: all checkpoints of a series may be open."""
        own = opened.tensors, opened.ranges
        self._index = own if self._index is None or self._index != own else self._index
        opened.tensors, opened.ranges = self._index
        return opened

    def __reduce__(self) -> tuple[Callable[[Path | None], "RemoteSession"], tuple[Path | None]]:
        return received_session, (self.scratch,)


def received_session(scratch: Path | None) -> RemoteSession:
    """The session shared by all checkpoints sent to this process; finding credentials for each task takes too long."""
    return _session_of(os.getpid(), scratch)


@lru_cache(maxsize=4)
def _session_of(process: int, scratch: Path | None) -> RemoteSession:  # noqa: ARG001
    return RemoteSession(scratch)


class LazyValue(Generic[T]):
    """A value that is computed on first use and shared by all threads. It pickles without the value."""

    def __init__(self) -> None:
        self._made, self._lock = list[T](), threading.Lock()

    def __call__(self, make: Callable[[], T]) -> T:
        with self._lock:
            if not self._made:
                self._made.append(make())
            return self._made[0]

    def __reduce__(self) -> tuple[type["LazyValue[T]"], tuple[()]]:
        return LazyValue, ()
