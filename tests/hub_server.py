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
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from range_server import Handler, Server

API = re.compile(
    r"/api/(?:models|datasets)/(?P<repo>.+?)/(?P<what>refs|revision|tree)(?:/(?P<revision>[^/]+)(?:/(?P<path>.+))?)?"
)
RESOLVE = re.compile(r"/(?:datasets/)?(?P<repo>.+?)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class HubServer(Server):
    """Repositories by name, each with its revisions by name, each a folder."""

    def __init__(
        self,
        repos: Mapping[str, Mapping[str, Path]],
        *,
        tags: Collection[str] = (),  # names that are tags; the others are branches
        page: int = 1000,  # entries of a tree for each page
    ) -> None:
        super().__init__()
        self.handler = _Hub
        self.repos = {repo: dict(revisions) for repo, revisions in repos.items()}
        self.tags, self.page = frozenset(tags), page
        self.lies: list[tuple[str, int]] = []  # entries that listings have and folders do not

    @property
    def sent(self) -> int:
        """Bytes of files that left, listings not counted."""
        return sum(request.sent for request in self.requests if "/resolve/" in request.path)

    def list_also(self, path: str, size: int = 1) -> None:
        """Put an entry into every listing, whatever its name."""
        self.lies.append((path, size))

    def remove(self, repo: str, revision: str) -> None:
        del self.repos[repo][revision]

    def commit(self, repo: str, revision: str) -> str:
        return commit_of(self.repos[repo][revision])

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


class _Hub(Handler):
    def route(self, path: str) -> None:
        match = API.fullmatch(path) or RESOLVE.fullmatch(path)
        parts = {key: unquote(value or "") for key, value in match.groupdict().items()} if match else {}
        repo, revision = parts.get("repo"), parts.get("revision", "")
        if repo not in self.owner.repos:
            return self._missing("RepoNotFound")
        if parts.get("what") == "refs":
            return self._refs(repo)
        folder = self.owner.folder(repo, revision)
        if folder is None:
            return self._missing("RevisionNotFound")
        if parts.get("what") == "revision":
            return self._revision(repo, folder)
        if parts.get("what") == "tree":
            return self._tree(folder, parts["path"])
        return self._resolve(folder, parts["path"])

    def _refs(self, repo: str) -> None:
        refs: dict[str, list[dict[str, str]]] = {"branches": [], "tags": [], "converts": []}
        for name, folder in self.owner.repos[repo].items():
            kind, place = ("tags", "tags") if name in self.owner.tags else ("branches", "heads")
            refs[kind].append(
                {"name": name, "ref": f"refs/{place}/{name}", "targetCommit": commit_of(folder)}
            )
        self._json(refs)

    def _revision(self, repo: str, folder: Path) -> None:
        listing = self.owner.listing(folder)
        sizes = self.query.get("blobs", "").lower() == "true"
        siblings = [{"rfilename": name} | ({"size": size} if sizes else {}) for name, size in listing]
        self._json({"id": repo, "modelId": repo, "sha": commit_of(folder), "tags": [], "siblings": siblings})

    def _tree(self, folder: Path, below: str) -> None:
        prefix = f"{below}/" if below else ""
        recursive = self.query.get("recursive", "").lower() == "true"
        entries: dict[str, dict[str, Any]] = {}
        for name, size in self.owner.listing(folder):
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
        stop, headers = start + self.owner.page, {}
        if stop < len(entries):
            address = f"{self.owner.endpoint}{urlsplit(self.path).path}?recursive={recursive}&cursor={stop}"
            headers["Link"] = f'<{address}>; rel="next"'
        return self._json(list(entries.values())[start:stop], headers)

    def _resolve(self, folder: Path, path: str) -> None:
        if path not in names_in(folder):
            return self._missing("EntryNotFound")
        return self.send_file((folder / path).read_bytes(), {"X-Repo-Commit": commit_of(folder)})

    def _missing(self, code: str) -> None:
        self.answer(404, b'{"error": "not found"}', {"X-Error-Code": code})

    def _json(self, content: Any, headers: Mapping[str, str] | None = None) -> None:
        self.answer(
            200, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})}
        )
