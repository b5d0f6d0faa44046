"""HTTP connections, reused for the next request, through the configured proxies of this machine."""

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
FEW = 1 << 16  # bytes; a read allocates as many as requested, so the server's length is not used

Key = tuple[object, ...]


class Answer(http.client.HTTPResponse):
    """A response that reads directly into a given buffer; Python's class reads into new memory and copies it."""

    def readinto1(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.fp is None or self.chunked or self.length is None:
            return super().readinto1(buffer)
        count = self.fp.readinto1(buffer[: self.length])
        self.length -= count
        return count


class Exchange(NamedTuple):
    """A response whose body is not read yet, and its connection."""

    answer: Answer
    connection: http.client.HTTPConnection
    key: Key


class Pool:
    """Idle connections for the next request, and the targets of recent redirects."""

    def __init__(self) -> None:
        self.moved: dict[str, tuple[str, float]] = {}
        self._idle: dict[Key, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)  # also at exit

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
            except ConnectionError:  # the server may have closed an idle connection: retry with a new one
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
        """Keep a connection for reuse if the response was read completely."""
        answer, connection, key = exchange
        try:
            if answer.status >= 300:  # read the short body of a redirect or an error
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
    """The certificates that this machine trusts, and those of certifi if it is installed."""
    context = ssl.create_default_context()
    # Without certifi, the certificates of this machine are enough.
    with suppress(ImportError, OSError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _connection(parts: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
    """A connection that is not open yet. A proxy tunnels https, and forwards http."""
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


@lru_cache(maxsize=64)  # the lookup takes as long as a small request
def _proxy(scheme: str, host: str) -> SplitResult | None:
    """The proxy for a host from the settings of this machine, as in urllib; None without one."""
    address = urllib.request.getproxies().get(scheme)
    if not address or urllib.request.proxy_bypass(host):
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http":
        raise Failure(
            f"the configured proxy has the scheme {proxy.scheme}, which is not supported; use an http proxy"
        )
    return proxy


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    return {"Proxy-Authorization": basic(unquote(proxy.username), unquote(proxy.password or ""))}


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def saved_login(host: str) -> str | None:
    """The Authorization header for a host from ~/.netrc; None without an entry."""
    try:
        entry = netrc.netrc().hosts.get(host)  # without the entry `default`, which would be sent to any host
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    return basic(entry[0], entry[2]) if entry else None
