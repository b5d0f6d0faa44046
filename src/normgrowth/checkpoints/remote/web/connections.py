"""Connections, kept for the next request, through the proxies that this machine is set to use."""

import base64
import http.client
import netrc
import os
import ssl
import threading
import urllib.request
import weakref
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.retry import Failure

IDLE = 16  # connections kept for each host
FEW = 1 << 16  # bytes; memory is taken for as many as are asked for, so not for what a server says will come

Key = tuple[object, ...]


class Answer(http.client.HTTPResponse):
    """Reads into memory that is there: Python's own reads into new memory, and copies from it."""

    def readinto1(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.fp is None or self.chunked or self.length is None:
            return super().readinto1(buffer)
        count = self.fp.readinto1(buffer[: self.length])
        self.length -= count
        return count


class Exchange(NamedTuple):
    """An answer whose body is not read, and the connection that it comes from."""

    answer: Answer
    connection: http.client.HTTPConnection
    key: Key


class Pool:
    """Connections that wait for the next request, and where files were last found."""

    def __init__(self) -> None:
        self.moved: dict[str, tuple[str, float]] = {}
        self._idle: dict[Key, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)  # at exit, too

    def ask(self, url: str, headers: dict[str, str]) -> Exchange:
        parts = urlsplit(url)
        proxy = _proxy(parts.scheme, parts.hostname or "")
        # A forked process must not use its parent's connections.
        key = (os.getpid(), *origin(url), proxy.geturl() if proxy else None)
        path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
        if proxy and parts.scheme == "http":
            path = parts._replace(fragment="").geturl()
            headers = headers | _proxy_headers(proxy)
        while True:
            kept = self._take(key)
            connection = kept or _connection(parts, proxy)
            connection.timeout = attempts.TIMEOUT
            if connection.sock is not None:
                connection.sock.settimeout(attempts.TIMEOUT)
            try:
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                assert isinstance(answer, Answer)
                return Exchange(answer, connection, key)
            except ConnectionError:  # a kept one may have been closed by the server: not a failure
                connection.close()
                if kept is None:
                    raise
            except BaseException:
                connection.close()
                raise

    def _take(self, key: Key) -> http.client.HTTPConnection | None:
        with self._lock:
            kept = self._idle.get(key)
            return kept.pop() if kept else None

    def give(self, exchange: Exchange) -> None:
        """Keep a connection, if nothing of the answer is left in it."""
        answer, connection, key = exchange
        try:
            if answer.status >= 300:  # the few words of a redirect or a refusal, which came with it
                answer.read1(FEW)
            ended = answer.length == 0 or (answer.chunked and not answer.read1(1))
        except (OSError, http.client.HTTPException):
            ended = False
        reusable = ended and not answer.will_close
        answer.close()
        with self._lock:
            kept = self._idle.setdefault(key, [])
            if reusable and len(kept) < IDLE:
                kept.append(connection)
                return
        connection.close()


def _close_all(idle: dict[Key, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        while connections:
            connections.pop().close()


def origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    """What this machine trusts, and what Python packages do where they are installed."""
    context = ssl.create_default_context()
    # Without the package, or its file, what this machine trusts is enough.
    with suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _connection(parts: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
    """Not connected yet. A proxy is asked to pass on what is encrypted, and to fetch what is not."""
    at = proxy or parts
    host, port = at.hostname or "", at.port
    connection: http.client.HTTPConnection
    if parts.scheme == "http":
        connection = http.client.HTTPConnection(host, port or 80, timeout=attempts.TIMEOUT)
    else:
        connection = http.client.HTTPSConnection(
            host, port or (80 if proxy else 443), timeout=attempts.TIMEOUT, context=_trust()
        )
    connection.response_class = Answer
    if proxy and parts.scheme == "https":
        connection.set_tunnel(parts.hostname or "", parts.port or 443, _proxy_headers(proxy))
    return connection


@lru_cache(maxsize=64)  # looking takes as long as a small request
def _proxy(scheme: str, host: str) -> SplitResult | None:
    """What this machine's settings say, as for everything else that Python fetches."""
    address = urllib.request.getproxies().get(scheme)
    if not address or urllib.request.proxy_bypass(host):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise Failure(f"the proxy of this machine is of a kind ({proxy.scheme}) that is not used here")
    return proxy


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    return {"Proxy-Authorization": basic(unquote(proxy.username), unquote(proxy.password or ""))}


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def saved_login(host: str) -> str | None:
    """What the person's ~/.netrc has for a host, as a header."""
    try:
        entry = netrc.netrc().hosts.get(host)  # and not `default`, which would go to anyone
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    return basic(entry[0], entry[2]) if entry else None
