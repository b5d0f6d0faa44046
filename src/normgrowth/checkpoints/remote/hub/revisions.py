"""A repository on the Hugging Face hub as a series: each branch or tag is one checkpoint.

Training runs are published this way (Pythia has 154 revisions), and all of them together seldom fit
on a disk. So a revision is a name and a commit until it is read by ranges (`places`) or fetched (`download`);
fetching fills one fresh folder, which the caller deletes after use, and the hub library's shared cache is left
as it was.

Whatever the hub answers is data from elsewhere: file names are checked before they become paths,
and anything that goes wrong is an `InputError` of one line.
"""

import errno
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from normgrowth.checkpoints.file_groups import best_files
from normgrowth.checkpoints.formats.safetensors import parse_index
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
    """One revision of a repository, not fetched. The commit is what counts; branches move."""

    repo: str
    revision: str
    commit: str
    endpoint: str | None = None
    folder: str = ""  # where in the repository the weights lie

    @property
    def label(self) -> str:
        return f"{SCHEME}{self.repo}{'/' if self.folder else ''}{self.folder}@{self.revision}"


def is_hub(uri: str) -> bool:
    return uri.startswith(SCHEME)


def list_revisions(uri: str, *, endpoint: str | None = None) -> list[Revision]:
    """The branches, then the tags, that ``hf://org/repo[/folder][@pattern]`` means, in the hub's order.

    The pattern is the shell's (``step*``, ``step[0-9]``) and by default takes all; a full commit hash
    is taken as it is. A branch and a tag with the same commit are both returned: which name tells
    the step is for the caller to say. Old repositories of one word (``hf://gpt2``) have no folder.

    `endpoint` is another hub's address. The token saved on this machine goes to the hub it is for and
    not to another address.
    """
    repo, folder, pattern = _parse(uri)
    api = api_of(endpoint)

    def refs() -> list[tuple[str, str]]:
        # Not by list_repo_refs, which takes no time limit: a lost connection would wait for ever.
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
        some = ", ".join(name for name, _ in known[:6]) or "none at all"
        rest = f", ... ({len(known)} in all)" if len(known) > 6 else ""
        raise InputError(f"{SCHEME}{repo}: no branch or tag matches {pattern!r}; it has {some}{rest}")
    return [Revision(repo, name, commit, endpoint, folder) for name, commit in chosen]


def pick_files(revision: Revision) -> tuple[dict[str, int], str | None, list[str]]:
    """The files of a revision with their bytes (0: not said), and of the best format the index or the weights."""
    sizes = _sizes(api_of(revision.endpoint), revision)
    index, weights = best_files([name for name in sizes if "/" not in name])
    if not weights and not index:
        raise InputError(f"{revision.label}: {_why_nothing(revision, sizes)}")
    return sizes, index, weights


def file_address(revision: Revision, name: str) -> tuple[str, dict[str, str], str]:
    """Where a file of a revision lies, the headers for that hub and no other, and the hub's address."""
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
        raise InputError(f"{uri}: weights are read from model repositories only, hf://org/repo")
    if not is_hub(uri) or not all(parts) or ".." in parts or (at and not pattern):
        raise InputError(
            f"{uri}: is not of the form hf://org/repo, hf://org/repo/folder or hf://org/repo@pattern"
        )
    return "/".join(parts[:2]), "/".join(parts[2:]), pattern or "*"


def api_of(endpoint: str | None) -> "HfApi":
    from huggingface_hub import HfApi, constants

    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise InputError(f"{endpoint}: a hub's address starts with https:// or http://")
    if endpoint is not None and "@" in endpoint:
        raise InputError("the hub's address has a password in it; set HF_ENDPOINT and HF_TOKEN instead")
    address = (endpoint or constants.ENDPOINT).rstrip("/")
    token = None if address == constants.ENDPOINT else False
    # Our own user agent, since the library's tells the hub what else is installed here.
    return HfApi(endpoint=address, token=token, headers={"user-agent": "normgrowth"})


class _NotAHub(Exception):
    """An answer that no hub gives."""


def _refs_in(answer: Any) -> list[tuple[str, str]]:
    """Name and commit of the branches, then of the tags."""
    try:
        found = [(ref["name"], ref["targetCommit"]) for kind in ("branches", "tags") for ref in answer[kind]]
    except (LookupError, TypeError):
        raise _NotAHub("no list of branches and tags") from None
    if not all(type(part) is str for pair in found for part in pair):
        raise _NotAHub("a branch without a name or a commit")
    return found


def _sizes(api: "HfApi", revision: Revision) -> dict[str, int]:
    """The files below the revision's folder, and their bytes.

    Asked of the revision and not of the tree, which the library cannot ask for with a time limit.
    """

    def listing() -> dict[str, int]:
        info = api.model_info(
            revision.repo, revision=revision.commit, files_metadata=True, timeout=attempts.TIMEOUT
        )
        files = info.siblings or ()
        return {
            str(file.rfilename): file.size if type(file.size) is int else 0 for file in files
        }  # 0: not said

    everything = ask(listing, revision.label, api.endpoint)
    for name in everything:
        if not stays_below(name):
            raise InputError(f"{revision.label}: lists a file {name!r}, not a path within a folder; refused")
    prefix = f"{revision.folder}/" if revision.folder else ""
    return {name[len(prefix) :]: size for name, size in everything.items() if name.startswith(prefix)}


def _why_nothing(revision: Revision, sizes: Mapping[str, int]) -> str:
    below: dict[str, list[str]] = {}
    for folder, _, file in (name.rpartition("/") for name in sizes):
        below.setdefault(folder, []).append(file)
    filled = [folder for folder, names in sorted(below.items()) if any(best_files(names))]
    if filled:
        inside = replace(revision, folder="/".join(filter(None, (revision.folder, filled[0]))))
        return f"has weights only in folders ({', '.join(filled[:6])}); name one: {inside.label}"
    files = ", ".join(sorted(sizes)[:6]) or "none at all"
    return f"has no weights in a format that is read here; its files are {files}"


def shards(revision: Revision, index: str, content: bytes, sizes: Mapping[str, int]) -> list[str]:
    """The files that an index names, each of which has to be in the listing."""
    named = sorted(set(parse_index(content, f"{revision.label}: {index}").values()))
    for shard in named:
        if shard not in sizes:
            raise InputError(f"{revision.label}: {index} names {shard!r}, which the repository does not have")
    return named


def ask(call: Callable[[], T], what: str, address: str) -> T:
    """Call the hub library, again if that may help; whatever it raises becomes one line."""

    def attempt() -> T:
        try:
            return call()
        except Exception as error:
            if raised_here(error) and not isinstance(error, _NotAHub):  # a mistake here, not the hub's
                raise
            headers = dict(getattr(getattr(error, "response", None), "headers", {}))
            # Not `from error`: its words may have a signed address in them.
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
    """An error of the connection. The library's client is httpx in some versions, httpx2 in others."""
    return type(error).__module__.startswith("httpx")


def refusal(status: int, code: str, address: str) -> str:
    """What an answer means, by its status and its X-Error-Code, and the way out."""
    login = "log in with `hf auth login` or set HF_TOKEN"
    match code:
        case "GatedRepo":
            return f"is gated; accept its terms on its page, then {login}"
        case "RevisionNotFound":
            return "the hub has no such revision, or no longer; list the revisions again"
        case "EntryNotFound":
            return "the hub lists this file but does not have it; try again later"
        case "RepoNotFound":
            return f"no such repository at {address}; check the name, or if it is private {login}"
    if status in (401, 403):
        return f"{address} refuses access; {login}"
    if status == 429:
        return f"{address} has had too many requests; wait five minutes, or {login} for a higher limit"
    return f"{address} answers with status {status}; try again later"


def _reason(error: BaseException, address: str) -> str:
    """What went wrong and the way out, without the library's paragraphs."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__  # "not in the cache either" says nothing here
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
            return f"is not a repository's name: {first_line}"
        case OSError(errno=errno.ENOSPC):
            return "the disk is full; make room, or choose a folder on another disk"
        case (
            _NotAHub()
            | json.JSONDecodeError()
            | UnicodeDecodeError()
            | LookupError()
            | TypeError()
            | AttributeError()
        ):
            return f"the answer of {address} is not a hub's ({first_line}); check the address"
    if _is_transport(error):
        detail = "no answer in time" if "Timeout" in type(error).__name__ else first_line
        return f"cannot reach {address} ({detail}); check the network and the address"
    return f"the hub library failed: {first_line}"
