"""A bucket on this machine, for tests: the files below a folder as Google's and Amazon's XML interfaces show them."""

import hashlib
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote
from xml.sax.saxutils import escape

from range_server import Handler, Server


class BucketServer(Server):
    """The buckets are the folders in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.other_words = False  # lists ETags that answers do not have
        self.takes_conditions = True
        self.handler = _Objects


class _Objects(Handler):
    def route(self, path: str) -> None:
        bucket, _, key = unquote(path).strip("/").partition("/")
        root = self.owner.folder / bucket
        if not root.is_dir():
            return self.answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if not key:
            return self.answer(200, self._listing(root), {"Content-Type": "application/xml"})
        if not (root / key).is_file():
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        content = (root / key).read_bytes()
        wanted = self.headers.get("If-Match", _etag(content))
        if self.owner.takes_conditions and wanted != _etag(content):
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        modified = formatdate((root / key).stat().st_mtime, usegmt=True)
        return self.send_file(content, {"ETag": _etag(content), "Last-Modified": modified})

    def _listing(self, root: Path) -> bytes:
        prefix = self.query.get("prefix", "")
        found = ""
        for path in sorted((root / prefix).iterdir()) if (root / prefix).is_dir() else ():
            key = escape(prefix + path.name)
            if path.is_dir():
                found += f"<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>"
                continue
            tag = '"other words"' if self.owner.other_words else _etag(path.read_bytes())
            found += (
                f"<Contents><Key>{key}</Key><Size>{path.stat().st_size}</Size><ETag>{escape(tag)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        return f'<?xml version="1.0"?><ListBucketResult>{found}</ListBucketResult>'.encode()


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'
