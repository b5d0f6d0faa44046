"""A repository on the Hugging Face hub as a series: each branch or tag is one checkpoint.

Training runs are published this way (Pythia has 154 revisions), and all revisions together seldom fit on a disk. So a
revision is only a name and a commit until it is opened (`hub_checkpoint`), and the shared cache of the hub library is
not changed.

Responses of the hub are untrusted: file names are checked before they are used as paths, and every failure is raised as
an `InputError` with a message of one line.
"""

import errno
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from normgrowth.checkpoints.file_groups import is_trainer_state
from normgrowth.checkpoints.formats.registry import format_of_name
from normgrowth.checkpoints.remote import retry as attempts
from normgrowth.checkpoints.remote.retry import TRANSIENT, Failure, retry, wait_asked_for
from normgrowth.checkpoints.safe_paths import stays_below
from normgrowth.errors import InputError, raised_here

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

SCHEME = "hf://"


@dataclass(frozen=True)
class Revision:
    """One revision of a repository, not downloaded. It is identified by the commit, because branches move."""

    repo: str
    revision: str
    commit: str
    endpoint: str | None = None
    folder: str = ""  # the folder in the repository that has the weights

    @property
    def label(self) -> str:
        return f"{SCHEME}{self.repo}{'/' if self.folder else ''}{self.folder}@{self.revision}"


def is_hub(uri: str) -> bool:
    return uri.startswith(SCHEME)


def list_revisions(uri: str, *, endpoint: str | None = None) -> list[Revision]:
    """The branches, then the tags, that match ``hf://org/repo[/folder][@pattern]``, in the hub's order.

    The pattern is a shell pattern (``step*``, ``step[0-9]``); without one, all match. A full commit hash is used
    directly. If a branch and a tag have the same commit, both are returned; the caller decides which name has the step.
    Old repositories with a name of one word (``hf://gpt2``) cannot be combined with a folder.

    endpoint: the address of another hub. The token saved on this machine is sent only to the hub that it is for.
    """
    repo, folder, pattern = _parse(uri)
    api = api_of(endpoint)

    def refs() -> list[tuple[str, str]]:
        # list_repo_refs has no timeout: it would wait forever after a lost connection.
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, validate_repo_id

        validate_repo_id(repo)
        headers = build_hf_headers(token=api.token, headers=api.headers)
        answer = get_session().get(
            f"{api.endpoint}/api/models/{repo}/refs", headers=headers, timeout=attempts.TIMEOUT
        )
        hf_raise_for_status(answer)
        return _refs_in(answer.json())

    known = ask(refs, f"{SCHEME}{repo}", api.endpoint)
    if re.fullmatch(r"[0-9a-f]{40}", pattern):
        known.append((pattern, pattern))
    chosen = [(name, commit) for name, commit in known if name == pattern or fnmatchcase(name, pattern)]
    if not chosen:
        some = ", ".join(name for name, _ in known[:6]) or "none"
        rest = f", ... ({len(known)} in total)" if len(known) > 6 else ""
        raise InputError(f"{SCHEME}{repo}: no branch or tag matches {pattern!r}; it has {some}{rest}")
    return [Revision(repo, name, commit, endpoint, folder) for name, commit in chosen]


def file_address(revision: Revision, name: str) -> tuple[str, dict[str, str], str]:
    """The URL of a file, the headers that may be sent only to that hub, and the hub's address."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    api = api_of(revision.endpoint)
    path = f"{revision.folder}/{name}" if revision.folder else name
    url = hf_hub_url(revision.repo, path, revision=revision.commit, endpoint=api.endpoint)
    headers = build_hf_headers(token=api.token, headers={"user-agent": "normgrowth"})
    return url, {key: value for key, value in headers.items() if key == "authorization"}, api.endpoint


def _parse(uri: str) -> tuple[str, str, str]:
    """Repository, folder and pattern."""
    place, at, pattern = uri.removeprefix(SCHEME).partition("@")
    parts = place.rstrip("/").split("/")
    if parts[0] in ("datasets", "spaces", "buckets", "kernels"):
        raise InputError(f"{uri}: only model repositories (hf://org/repo) are supported")
    if not is_hub(uri) or not all(parts) or ".." in parts or (at and not pattern):
        raise InputError(f"{uri}: must be hf://org/repo, hf://org/repo/folder or hf://org/repo@pattern")
    return "/".join(parts[:2]), "/".join(parts[2:]), pattern or "*"


def api_of(endpoint: str | None) -> "HfApi":
    from huggingface_hub import HfApi, constants

    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise InputError(f"{endpoint}: the address of a hub must start with https:// or http://")
    if endpoint is not None and "@" in endpoint:
        raise InputError("the hub's address contains a password; set HF_ENDPOINT and HF_TOKEN instead")
    address = (endpoint or constants.ENDPOINT).rstrip("/")
    token = None if address == constants.ENDPOINT else False
    # The library's default user agent would send a list of installed packages.
    return HfApi(endpoint=address, token=token, headers={"user-agent": "normgrowth"})


class _NotAHub(Exception):
    """A response that is not from a hub."""


def _refs_in(answer: Any) -> list[tuple[str, str]]:
    """Name and commit of each branch, then of each tag."""
    try:
        found = [(ref["name"], ref["targetCommit"]) for kind in ("branches", "tags") for ref in answer[kind]]
    except (LookupError, TypeError):
        raise _NotAHub("no list of branches and tags") from None
    if not all(type(part) is str for pair in found for part in pair):
        raise _NotAHub("a branch without a name or a commit")
    return found


def list_files(revision: Revision) -> dict[str, int]:
    """The files below the revision's folder, and their sizes in bytes (0: unknown).

    From the revision's info, because the library has no timeout for listing the tree.
    """
    api = api_of(revision.endpoint)

    def listing() -> dict[str, int]:
        info = api.model_info(
            revision.repo, revision=revision.commit, files_metadata=True, timeout=attempts.TIMEOUT
        )
        files = info.siblings or ()
        return {str(file.rfilename): file.size if type(file.size) is int else 0 for file in files}

    everything = ask(listing, revision.label, api.endpoint)
    for name in everything:
        if not stays_below(name):
            raise InputError(
                f"{revision.label}: lists the file {name!r}, a path outside of the repository; refused"
            )
    prefix = f"{revision.folder}/" if revision.folder else ""
    return {name[len(prefix) :]: size for name, size in everything.items() if name.startswith(prefix)}


def why_nothing(revision: Revision, sizes: Mapping[str, int]) -> str:
    """Why there are no weights in the revision's folder."""

    def has_weights(name: str) -> bool:
        file = name.rpartition("/")[2]
        return not is_trainer_state(file) and (file.endswith(".distcp") or bool(format_of_name(name, names)))

    names = list(sizes)
    filled = sorted({name.rpartition("/")[0] for name in names if "/" in name and has_weights(name)})
    if filled:
        inside = replace(revision, folder="/".join(filter(None, (revision.folder, filled[0]))))
        return f"has weights only in folders ({', '.join(filled[:6])}); choose one: {inside.label}"
    files = ", ".join(sorted(sizes)[:6]) or "none"
    return f"has no weights in a supported format; its files are: {files}"


def ask(call: Callable[[], T], what: str, address: str) -> T:
    """Call the hub library, with retries after transient failures. Its exceptions become an InputError of one line."""

    def attempt() -> T:
        try:
            return call()
        except Exception as error:
            # A bug of normgrowth, not a failure of the hub.
            if raised_here(error) and not isinstance(error, _NotAHub):
                raise
            headers = dict(getattr(getattr(error, "response", None), "headers", {}))
            # Not `from error`: its message may contain a signed address.
            raise Failure(
                _reason(error, address), retryable=_may_pass(error), wait=wait_asked_for(headers)
            ) from None

    return retry(attempt, what)


def _may_pass(error: Exception) -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT
    return _is_transport(error)


def _is_transport(error: BaseException) -> bool:
    """Whether it is a connection error. The library's client is httpx or httpx2, depending on its version."""
    return type(error).__module__.startswith("httpx")


def refusal(status: int, code: str, address: str) -> str:
    """The message for a status and an X-Error-Code, with advice."""
    login = "log in with `hf auth login` or set HF_TOKEN"
    match code:
        case "GatedRepo":
            return f"is gated; accept its terms on its page, then {login}"
        case "RevisionNotFound":
            return "the hub has no such revision (any more); list the revisions again"
        case "EntryNotFound":
            return "the hub lists this file but does not have it; try again later"
        case "RepoNotFound":
            return f"no such repository at {address}; check the name or, if it is private, {login}"
    if status in (401, 403):
        return f"{address} refuses access; {login}"
    if status == 429:
        return f"too many requests to {address}; wait five minutes, or {login} for a higher limit"
    return f"{address} answers with status {status}; try again later"


def _reason(error: BaseException, address: str) -> str:
    """The reason of an error and advice in one line, without the library's long messages."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # "not in the cache either" is not the cause
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    match error:
        case errors.GatedRepoError():
            return refusal(403, "GatedRepo", address)
        case errors.RevisionNotFoundError():
            return refusal(404, "RevisionNotFound", address)
        case errors.EntryNotFoundError():
            return refusal(404, "EntryNotFound", address)
        case errors.RepositoryNotFoundError():
            return refusal(404, "RepoNotFound", address)
        case errors.HfHubHTTPError():
            return refusal(error.response.status_code, "", address)
        case errors.OfflineModeIsEnabled():
            return "the hub library is in offline mode; unset HF_HUB_OFFLINE"
        case errors.HFValidationError():
            return f"is not a valid repository name: {first_line}"
        case OSError(errno=errno.ENOSPC):
            return "the disk is full; free some space, or choose a folder on another disk"
        case (
            _NotAHub()
            | json.JSONDecodeError()
            | UnicodeDecodeError()
            | LookupError()
            | TypeError()
            | AttributeError()
        ):
            return f"the response of {address} is not that of a hub ({first_line}); check the address"
    if _is_transport(error):
        detail = "timeout" if "Timeout" in type(error).__name__ else first_line
        return f"cannot reach {address} ({detail}); check the network and the address"
    return f"the hub library failed: {first_line}"
