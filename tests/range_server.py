"""A small web server on this machine, for tests: files of a folder over real HTTP, with ranges.

Keep-alive, HEAD and an index page for each folder. Every request is logged, and faults are injected by pattern:

    with RangeServer(folder) as server:
        server.fail("GET /step_0", status=503, times=1)
        open_source(server.url)
"""

import hashlib
import html
import re
import socket
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit


@dataclass(frozen=True)
class Request:
    """One line of the log."""

    method: str
    path: str  # unquoted, without the query
    headers: Mapping[str, str]  # in lower case
    status: int
    sent: int  # bytes of body that were to leave
    query: str = ""

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
    lengthen: int | None = None  # the same, with this many bytes too many
    hang: bool = False  # take the request and say nothing until the server closes
    hang_after: int | None = None  # the same, after this many bytes of the body
    trickle: float | None = None  # a byte at a time, with a pause of so many seconds
    whole: bool = False  # as if no range were asked for
    add: Mapping[str, str | None] | None = None  # headers to add, to replace or (None) to leave out
    chunked: bool = False  # the right answer, with no length said in advance
    after: int = 0  # requests that are answered rightly first


class Server:
    """What every server here does: run, log, fail when told to."""

    handler: type["Handler"]

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.written = 0  # bytes of bodies that did leave
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def __enter__(self) -> Any:
        self._http = _Http(("127.0.0.1", 0), self.handler)
        self._http.owner = self
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

    def fail(self, pattern: str, *, times: float = float("inf"), **what: Any) -> None:
        self.faults.append(Fault(re.compile(pattern), times, **what))

    def fault_for(self, line: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.pattern.search(line):
                    if fault.after > 0:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def hang_up(self) -> None:
        """Close the connections that clients keep."""
        self._http.hang_up()

    def asked_twice(self) -> int:
        """Bytes of files that left more than once."""
        times: Counter[tuple[str, int]] = Counter()
        for request in self.requests:
            if request.status == 206:
                first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
                times.update((request.path, place) for place in range(first, last + 1))
        return sum(count - 1 for count in times.values())


class RangeServer(Server):
    """The files below a folder."""

    def __init__(self, folder: Path, login: str = "") -> None:
        super().__init__()
        self.folder, self.login = folder, login  # login: the header without which nothing is shown
        self.handler = _Files

    @property
    def url(self) -> str:
        return f"{self.endpoint}/"

    @property
    def sent(self) -> int:
        """Bytes of files that left, index pages not counted."""
        return sum(request.sent for request in self.requests if not request.path.endswith("/"))


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # joined on closing, so that no test leaves a thread behind
    owner: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connections: set[socket.socket] = set()

    def hang_up(self) -> None:
        for connection in list(self.connections):
            with suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler, ABC):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's acknowledgement
    server: _Http

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)
        if self.server.owner.closing.is_set():  # came too late to be hung up on with the others
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
        self.owner = self.server.owner
        split = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        self.line_path = unquote(split.path)
        self.fault = self.owner.fault_for(f"{self.command} {self.line_path}")
        if self.fault and self.fault.hang:
            self.owner.closing.wait()
            self.close_connection = True
        elif self.fault and self.fault.status is not None:
            self.answer(self.fault.status, b'{"error": "injected"}', self.fault.headers or {})
        elif self.fault and self.fault.body is not None:
            self.answer(200, self.fault.body)
        else:
            self.route(split.path)

    do_HEAD = do_GET

    def do_CONNECT(self) -> None:
        """As a proxy: pass bytes on, both ways, until one side hangs up."""
        asked = {key.lower(): value for key, value in self.headers.items()}
        self.server.owner.requests.append(Request("CONNECT", self.path, asked, 200, 0))
        host, _, port = self.path.rpartition(":")
        self.send_response(200)
        self.end_headers()
        self.close_connection = True

        def pass_on(one: socket.socket, other: socket.socket) -> None:
            with suppress(OSError):
                while data := one.recv(1 << 16):
                    other.sendall(data)
            for side in (one, other):
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

        with socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=pass_on, args=(there, self.connection))
            back.start()
            pass_on(self.connection, there)
            back.join()

    @abstractmethod
    def route(self, path: str) -> None:
        """Answer for a path, by `answer` or `send_file`."""

    def send_file(self, content: bytes, headers: Mapping[str, str]) -> None:
        """The whole or the range asked for."""
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Accept-Ranges": "bytes",
            **headers,
        }
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if span is None or span.groups() == ("", "") or (self.fault and self.fault.whole):
            return self.answer(200, content, headers)
        first, last = span.groups()
        start = int(first) if first else max(len(content) - int(last), 0)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        if start >= stop:
            return self.answer(416, b"", headers | {"Content-Range": f"bytes */{len(content)}"})
        return self.answer(
            206, content[start:stop], headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
        )

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        fault = self.fault
        if fault and fault.shorten:
            body = body[: -fault.shorten]
        if fault and fault.lengthen:
            body += b"x" * fault.lengthen
        send = b"" if self.command == "HEAD" else body
        if fault and fault.cut is not None:
            send, self.close_connection = send[: fault.cut], True
        asked = {key.lower(): value for key, value in self.headers.items()}
        with self.owner.lock:
            query = urlsplit(self.path).query
            self.owner.requests.append(Request(self.command, self.line_path, asked, status, len(send), query))
        self.send_response(status)
        chunked = bool(fault and fault.chunked)
        length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
        for key, value in {**(headers or {}), **length, **((fault and fault.add) or {})}.items():
            if value is None:  # left out: where an answer has no length, it ends with the connection
                self.close_connection = True
            else:
                self.send_header(key, value)
        self.end_headers()
        if chunked:
            for start in range(0, len(send), 1000):
                part = send[start : start + 1000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        step = 1 if fault and fault.trickle else 1 << 16
        for start in range(0, len(send), step):
            if fault and fault.hang_after is not None and start + step > fault.hang_after:
                self.wfile.write(send[start : fault.hang_after])
                self.owner.closing.wait()
                self.close_connection = True
                return
            self.wfile.write(send[start : start + step])
            self.owner.written += len(send[start : start + step])
            if fault and fault.trickle:
                self.owner.closing.wait(fault.trickle)


class _Files(Handler):
    def route(self, path: str) -> None:
        place = self.owner.folder / unquote(path).lstrip("/")
        if self.owner.login and self.headers.get("Authorization") != self.owner.login:
            return self.answer(401, b"who are you?")
        if place.is_file():
            return self.send_file(place.read_bytes(), {})
        if not place.is_dir():
            return self.answer(404, b"not here")
        if not path.endswith("/"):
            return self.answer(301, b"", {"Location": f"{path}/"})
        names = [f"{p.name}/" if p.is_dir() else p.name for p in sorted(place.iterdir())]
        links = "".join(f'<li><a href="{quote(name)}">{html.escape(name)}</a>' for name in ("../", *names))
        page = f'<html><a href="?C=M;O=A">Modified</a><a href="https://example.org/">us</a>{links}</html>'
        return self.answer(200, page.encode(), {"Content-Type": "text/html"})
