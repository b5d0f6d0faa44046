"""Folders on web servers and on the Hugging Face hub, whose files are read by ranges.

The private parts of an address (the password, and the query of a signed address) stay in the session of the series, in
this process. Labels, records, messages and pickles have only the rest.
"""

import hashlib
import html
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote, unquote, urljoin, urlsplit

from normgrowth.checkpoints.remote.hub import revisions as hub
from normgrowth.checkpoints.remote.retry import Failure
from normgrowth.checkpoints.remote.session import RemoteSession
from normgrowth.checkpoints.remote.transport import Bytes, DirectoryEntry, FileInfo
from normgrowth.checkpoints.remote.web.connections import basic, origin
from normgrowth.checkpoints.remote.web.http import Target, get_page, get_range
from normgrowth.checkpoints.safe_paths import stays_below
from normgrowth.errors import InputError

PAGE_LIMIT = 16 << 20  # maximum bytes of a directory page
_PLAIN = "/~!$&'()*+,;=:@"  # characters that need no quoting in a path
# Python's HTML parser takes quadratic time for malformed pages; this pattern is bounded.
_LINK = re.compile(
    r"""<a\s(?:[^<>]{0,1000}?\s)?href\s{0,9}=\s{0,9}(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE
)
# The element around the links of a directory page, closed after the last link: <html> if the page has it.
_DOCUMENT = re.compile(r"<(/?)html(?=[\s>])", re.IGNORECASE)
_BEGINNING = re.compile(r"\s*(?:<[^<>]*>\s*)*(?:<[^<>]*)?")  # tags without any text
_LIST = re.compile(r"<(/?)(?:pre|table|ul|ol)(?=[\s>])", re.IGNORECASE)


def redact_url(address: str) -> str:
    """An address without its password, its query and its fragment."""
    scheme, mark, rest = address.partition("://")
    place = rest.partition("#")[0].partition("?")[0] if scheme in ("http", "https") else rest
    host, slash, path = place.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


@dataclass(frozen=True)
class _Web(ABC):
    """Base class: a target for each file, and methods to read it."""

    @abstractmethod
    def _target(self, file: str, where: str) -> Target: ...

    def stat(self, file: str, where: str) -> FileInfo:
        """Size and tag from a request for the first eight bytes, which are needed anyway; HEAD is not reliable."""
        got = get_range(self._target(file, where), 0, 8, where)
        return FileInfo(got.size, got.tag, got.content.tobytes())

    def read(
        self, file: str, start: int, stop: int, where: str, info: FileInfo, into: Bytes | None = None
    ) -> Bytes:
        return get_range(self._target(file, where), start, stop, where, info.size, info.tag, into).content

    def content(self, file: str, limit: int, where: str) -> bytes:
        return get_page(self._target(file, where), limit, where)[0]


@dataclass(frozen=True)
class HubFiles(_Web):
    """The files of one revision. A commit never changes, so ETags are not checked."""

    revision: hub.Revision
    session: RemoteSession = field(default_factory=RemoteSession, compare=False, repr=False)

    def show(self, file: str = "") -> str:
        return f"{self.revision.label}: {file}" if file else self.revision.label

    def stat(self, file: str, where: str) -> FileInfo:
        return super().stat(file, where)._replace(tag=self.revision.commit)

    def read(
        self, file: str, start: int, stop: int, where: str, info: FileInfo, into: Bytes | None = None
    ) -> Bytes:
        return super().read(file, start, stop, where, info._replace(tag=""), into)

    def _target(self, file: str, where: str) -> Target:  # noqa: ARG002
        url, private, address = hub.file_address(self.revision, file)
        return Target(url, private, partial(hub.refusal, address=address), self.session.pool)


@dataclass(frozen=True)
class Website(_Web):
    """A folder of a web server, or a single file if its address has a query."""

    base: str  # ends with /
    query: str = ""  # a digest of the query; the query itself stays in the session
    session: RemoteSession = field(default_factory=RemoteSession, compare=False, repr=False)

    @staticmethod
    def of(address: str, session: RemoteSession) -> "tuple[Website, str]":
        """The folder and the file name of an address. Its private parts are stored in the session."""
        try:
            parts = urlsplit(address)
            if not parts.hostname or parts.port == 0:
                raise ValueError
        except ValueError:
            raise InputError(
                f"{redact_url(address)}: is not a valid address; expected https://host/path"
            ) from None
        clean = quote(parts.path, safe=_PLAIN + "%") or "/"
        folder, _, name = clean.rpartition("/")
        base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{folder}/"
        if parts.username:
            session.logins[origin(base)] = basic(unquote(parts.username), unquote(parts.password or ""))
        digest = hashlib.sha256(parts.query.encode()).hexdigest()[:16] if parts.query else ""
        if digest:
            session.queries[digest] = quote(parts.query, safe=_PLAIN + "%?[]")
        return Website(base, digest, session), unquote(name)

    def child(self, name: str) -> "Website":
        return Website(f"{self.base}{quote(name, safe=_PLAIN)}/", session=self.session)

    def show(self, file: str = "") -> str:
        return f"{self.base}{quote(file, safe=_PLAIN)}"

    def _target(self, file: str, where: str) -> Target:
        queries = self.session.queries
        if self.query and self.query not in queries:
            raise InputError(f"{where}: the query of its address is not available in this process")
        query = f"?{queries[self.query]}" if self.query else ""
        login = self.session.login(self.base)
        private = {"Authorization": login} if login else {}
        return Target(f"{self.show(file)}{query}", private, pool=self.session.pool)

    def ls(self) -> list[DirectoryEntry]:
        """The entries of a folder, from the links of its directory page."""
        page, address = get_page(self._target("", self.base), PAGE_LIMIT, self.base, _check_end)
        base = urljoin(address, ".")
        names: dict[str, bool] = {}
        for found in _LINK.finditer(page.decode("utf-8", "replace")):
            link = html.unescape(found[1] or found[2] or found[3] or "").strip()
            try:
                target = urljoin(base, link.partition("#")[0])
            except ValueError:
                continue
            name = unquote(target.removeprefix(base).removesuffix("/"))
            if not target.startswith(base) or "?" in target or "/" in name:
                continue  # a link to sort by a column, to the parent folder, or to another host
            if name and stays_below(name):
                names[name] = names.get(name, False) or target.endswith("/")
        return [DirectoryEntry(name, is_folder) for name, is_folder in names.items()]


def _check_end(page: bytes) -> None:
    """Raise Failure if a directory page is truncated: the element around its links must be closed after the last link.

    The start of the page is not enough: Go's server sends <!doctype html> without <html>, lighttpd an XML prolog.
    """
    text = page.decode("utf-8", "replace")
    around = _DOCUMENT if any(not found[1] for found in _DOCUMENT.finditer(text)) else _LIST
    tags = [(found.start(), bool(found[1])) for found in around.finditer(text)]
    closed = max((place for place, closes in tags if closes), default=-1)
    if tags:
        whole = closed > max((found.start() for found in _LINK.finditer(text)), default=-1)
    else:  # links without an element around them, another page, or the start of one
        whole = _BEGINNING.fullmatch(text) is None
    if not whole:
        raise Failure(
            "its directory page is truncated (an element is not closed); pass the addresses of the files",
            retryable=True,
        )
