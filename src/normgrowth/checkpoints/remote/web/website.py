"""Folders on web servers and on the Hugging Face hub, whose files are read by ranges.

An address is split here into what may be info and what may not: the password and the query of a signed
address stay in the session of the series, in this process, and labels, records, messages and pickles have the rest.
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

PAGE_LIMIT = 16 << 20  # bytes of a list of files
_PLAIN = "/~!$&'()*+,;=:@"  # what need not be quoted in a path
# Not by an HTML parser: Python's takes time with the square of what is badly written. Bounded, so that this does not.
_LINK = re.compile(
    r"""<a\s(?:[^<>]{0,1000}?\s)?href\s{0,9}=\s{0,9}(?:"([^"<>]*)"|'([^'<>]*)'|([^\s"'<>]+))""", re.IGNORECASE
)
# What is around the links of a list, and is closed after the last of them; <html> where a page has it.
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
    """What both have in common: a target for each file, and how it is read."""

    @abstractmethod
    def _target(self, file: str, where: str) -> Target: ...

    def stat(self, file: str, where: str) -> FileInfo:
        """By its first eight bytes, which are needed anyway; not every server answers a HEAD as it does a GET."""
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
    """The files of one revision. Its commit never changes, so its ETags need not be watched."""

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
    """A folder of a web server; or one file there, if its address has a query."""

    base: str  # with / at the end
    query: str = ""  # a digest of the query, which the session keeps
    session: RemoteSession = field(default_factory=RemoteSession, compare=False, repr=False)

    @staticmethod
    def of(address: str, session: RemoteSession) -> "tuple[Website, str]":
        """The folder that an address lies in, and its name there; what is private is put aside."""
        try:
            parts = urlsplit(address)
            if not parts.hostname or parts.port == 0:
                raise ValueError
        except ValueError:
            raise InputError(
                f"{redact_url(address)}: is not an address of the form https://host/path"
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
            raise InputError(f"{where}: the query of its address stays in the process that was given it")
        query = f"?{queries[self.query]}" if self.query else ""
        login = self.session.login(self.base)
        private = {"Authorization": login} if login else {}
        return Target(f"{self.show(file)}{query}", private, pool=self.session.pool)

    def ls(self) -> list[DirectoryEntry]:
        """What an index page links to, directly below it."""
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
                continue  # a column to sort by, the folder above, another host
            if name and stays_below(name):
                names[name] = names.get(name, False) or target.endswith("/")
        return [DirectoryEntry(name, is_folder) for name, is_folder in names.items()]


def _check_end(page: bytes) -> None:
    """A list that is cut short would make the series shorter: what a page opens around its links, it closes after them.

    Not by the declaration at its beginning: Go's server sends <!doctype html> and no <html>, lighttpd an XML prolog.
    """
    text = page.decode("utf-8", "replace")
    around = _DOCUMENT if any(not found[1] for found in _DOCUMENT.finditer(text)) else _LIST
    tags = [(found.start(), bool(found[1])) for found in around.finditer(text)]
    closed = max((place for place, closes in tags if closes), default=-1)
    if tags:
        whole = closed > max((found.start() for found in _LINK.finditer(text)), default=-1)
    else:  # links without a list around them, another page; or the beginning of one
        whole = _BEGINNING.fullmatch(text) is None
    if not whole:
        raise Failure(
            "its list of files is cut short (what it opens is not closed); name the files one by one",
            retryable=True,
        )
