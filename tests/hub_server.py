"""A small Hugging Face hub on this machine, for tests: the four answers the real client asks for.

Refs, revision, tree and resolve are served from local folders, one for each revision, over real
HTTP with keep-alive, HEAD and ranges. A commit is a hash of a folder's content, so two names of one
folder have one commit. Every request is logged, and faults are injected by pattern:

    with HubServer({"org/tiny": {"step0": folder, "step100": other}}) as server:
        server.fail("GET .*/resolve/", status=503, times=1)
        list_revisions("hf://org/tiny", endpoint=server.endpoint)
"""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API = re.compile(
    r"/api/(?:models|datasets)/(?P<repo>.+?)/(?P<what>refs|revision|tree)(?:/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?"
)
RESOLVE = re.compile(r"/(?:datasets/)?(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass(frozen=True)
class Request:
    """One line of the log."""

    method: str
    path: str  # unquoted, without the query
    headers: Mapping[str, str]  # in lower case
    status: int
    sent: int  # bytes of body that left

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class Fault:
    """What to do instead of the right answer, for the next `times` requests whose line matches."""

    pattern: re.Pattern[str]
    times: float
    status: int | None = None  # answer this status with these headers
    headers: Mapping[str, str] | None = None
    body: bytes | None = None  # answer 200 with this
    cut: int | None = None  # promise the whole body, send this many bytes, hang up
    shorten: int | None = None  # a well-formed answer that lacks this many bytes at the end
    hang: bool = False  # take the request and say nothing until the server closes


class HubServer:
    """Repositories by name, each with its revisions by name, each a folder."""

    def __init__(
        self,
        repos: Mapping[str, Mapping[str, Path]],
        *,
        tags: Collection[str] = (),  # names that are tags; the others are branches
        page: int = 1000,  # entries of a tree for each page
    ) -> None:
        self.repos = {repo: dict(revisions) for repo, revisions in repos.items()}
        self.tags, self.page = frozenset(tags), page
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.lies: list[tuple[str, int]] = []  # entries that listings have and folders do not
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def __enter__(self) -> "HubServer":
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.hub = self
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.hang_up()
        self._http.server_close()  # waits for the handlers' threads
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.requests]

    @property
    def sent(self) -> int:
        """Bytes of files that left, listings not counted."""
        return sum(request.sent for request in self.requests if "/resolve/" in request.path)

    def fail(self, pattern: str, *, times: float = float("inf"), **what: Any) -> None:
        self.faults.append(Fault(re.compile(pattern), times, **what))

    def list_also(self, path: str, size: int = 1) -> None:
        """Put an entry into every listing, whatever its name."""
        self.lies.append((path, size))

    def remove(self, repo: str, revision: str) -> None:
        del self.repos[repo][revision]

    def commit(self, repo: str, revision: str) -> str:
        return commit_of(self.repos[repo][revision])

    def fault_for(self, line: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.pattern.search(line):
                    fault.times -= 1
                    return fault
        return None

    def folder(self, repo: str, revision: str) -> Path | None:
        """By name or by commit."""
        revisions = self.repos[repo]
        if revision in revisions:
            return revisions[revision]
        return next((folder for folder in revisions.values() if commit_of(folder) == revision), None)

    def listing(self, folder: Path) -> list[tuple[str, int]]:
        return [(name, (folder / name).stat().st_size) for name in names_in(folder)] + self.lies


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def commit_of(folder: Path) -> str:
    digest = hashlib.sha1()
    for name in names_in(folder):
        digest.update(f"{name}\0".encode() + hashlib.sha1((folder / name).read_bytes()).digest())
    return digest.hexdigest()


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # joined on closing, so that no test leaves a thread behind
    hub: HubServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: set[socket.socket] = set()

    def hang_up(self) -> None:
        for connection in list(self.connections):
            with suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's acknowledgement
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)
        if self.server.hub.closing.is_set():  # came too late to be hung up on with the others
            self.server.hang_up()

    def finish(self) -> None:
        super().finish()
        self.server.connections.discard(self.connection)

    def handle(self) -> None:
        with suppress(OSError):  # a client may go away when it likes
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.hub = self.server.hub
        split = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        self.line_path = unquote(split.path)
        self.fault = self.hub.fault_for(f"{self.command} {self.line_path}")
        if self.fault and self.fault.hang:
            self.hub.closing.wait()
            self.close_connection = True
        elif self.fault and self.fault.status is not None:
            self._answer(self.fault.status, b'{"error": "injected"}', self.fault.headers or {})
        elif self.fault and self.fault.body is not None:
            self._answer(200, self.fault.body)
        else:
            self._route(split.path)

    do_HEAD = do_GET

    def _route(self, path: str) -> None:
        match = API.fullmatch(path) or RESOLVE.fullmatch(path)
        parts = {key: unquote(value or "") for key, value in match.groupdict().items()} if match else {}
        repo, revision = parts.get("repo"), parts.get("revision", "")
        if repo not in self.hub.repos:
            return self._missing("RepoNotFound")
        if parts.get("what") == "refs":
            return self._refs(repo)
        folder = self.hub.folder(repo, revision)
        if folder is None:
            return self._missing("RevisionNotFound")
        if parts.get("what") == "revision":
            return self._revision(repo, folder)
        if parts.get("what") == "tree":
            return self._tree(folder, parts["path"])
        return self._resolve(folder, parts["path"])

    def _refs(self, repo: str) -> None:
        refs: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": []}
        for name, folder in self.hub.repos[repo].items():
            kind, place = ("tags", "tags") if name in self.hub.tags else ("branches", "heads")
            refs[kind].append(
                {"name": name, "ref": f"refs/{place}/{name}", "targetCommit": commit_of(folder)}
            )
        self._json(refs)

    def _revision(self, repo: str, folder: Path) -> None:
        listing = self.hub.listing(folder)
        sizes = self.query.get("blobs", "").lower() == "true"
        siblings = [{"rfilename": name} | ({"size": size} if sizes else {}) for name, size in listing]
        self._json({"id": repo, "modelId": repo, "sha": commit_of(folder), "tags": [], "siblings": siblings})

    def _tree(self, folder: Path, below: str) -> None:
        prefix = f"{below}/" if below else ""
        recursive = self.query.get("recursive", "").lower() == "true"
        entries: dict[str, dict[str, Any]] = {}
        for name, size in self.hub.listing(folder):
            if not name.startswith(prefix):
                continue
            for end in [i for i, sign in enumerate(name) if sign == "/" and i >= len(prefix)]:
                entries[name[:end]] = {"type": "directory", "path": name[:end], "oid": "0" * 40, "size": 0}
            entries[name] = {"type": "file", "path": name, "oid": "0" * 40, "size": size}
        if not recursive:
            entries = {path: entry for path, entry in entries.items() if "/" not in path[len(prefix) :]}
        if below and not entries:
            return self._missing("EntryNotFound")
        start = int(self.query.get("cursor", 0))
        stop, headers = start + self.hub.page, {}
        if stop < len(entries):
            address = f"{self.hub.endpoint}{urlsplit(self.path).path}?recursive={recursive}&cursor={stop}"
            headers["Link"] = f'<{address}>; rel="next"'
        return self._json(list(entries.values())[start:stop], headers)

    def _resolve(self, folder: Path, path: str) -> None:
        if path not in names_in(folder):
            return self._missing("EntryNotFound")
        content = (folder / path).read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": commit_of(folder),
            "Accept-Ranges": "bytes",
        }
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if span is None or span.groups() == ("", ""):
            return self._answer(200, content, headers)
        first, last = span.groups()
        start = int(first) if first else max(len(content) - int(last), 0)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        if start >= stop:
            return self._answer(416, b"", headers | {"Content-Range": f"bytes */{len(content)}"})
        return self._answer(
            206, content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        )

    def _missing(self, code: str) -> None:
        self._answer(404, b'{"error": "not found"}', {"X-Error-Code": code})

    def _json(self, content: Any, headers: Mapping[str, str] | None = None) -> None:
        self._answer(
            200, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        if self.fault and self.fault.shorten:
            body = body[: -self.fault.shorten]
        send = b"" if self.command == "HEAD" else body
        if self.fault and self.fault.cut is not None:
            send, self.close_connection = send[: self.fault.cut], True
        asked = {key.lower(): value for key, value in self.headers.items()}
        with self.hub.lock:
            self.hub.requests.append(Request(self.command, self.line_path, asked, status, len(send)))
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(send)
