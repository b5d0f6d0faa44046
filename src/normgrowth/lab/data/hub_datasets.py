"""Penn Treebank and WikiText-2 from the hub: the parquet files of a data set, and nothing that would have to be run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from normgrowth.checkpoints.remote.hub.revisions import api_of, ask
from normgrowth.checkpoints.remote.retry import TIMEOUT
from normgrowth.errors import InputError
from normgrowth.stored_result import read_parquet


@dataclass(frozen=True)
class Place:
    """Where a corpus lies: `folder`/train…parquet, validation… and test…, with a sentence a row."""

    repository: str
    folder: str
    column: str
    revision: str = "main"


PLACES = {
    "penn": Place("ptb-text-only/ptb_text_only", "penn_treebank", "sentence", "refs/convert/parquet"),
    "wikitext-2": Place("Salesforce/wikitext", "wikitext-2-v1", "text"),
}
PARTS = {"train": "train", "valid": "validation", "test": "test"}  # ours, and how the hub says it


def from_hub(name: str, endpoint: str | None = None) -> dict[str, list[list[str]]]:
    """The sentences of each part as words; files are kept where the hub's own client keeps them."""
    place, api = PLACES[name], api_of(endpoint)

    def listing() -> list[str]:
        info = api.dataset_info(place.repository, revision=place.revision, timeout=TIMEOUT)
        return [str(file.rfilename) for file in info.siblings or ()]

    def fetched(file: str) -> Callable[[], str]:
        return lambda: api.hf_hub_download(
            place.repository, file, repo_type="dataset", revision=place.revision, etag_timeout=TIMEOUT
        )

    try:
        label = f"hf://datasets/{place.repository}"
        files = sorted(file for file in ask(listing, label, api.endpoint) if file.endswith(".parquet"))
        found: dict[str, list[list[str]]] = {}
        for part, theirs in PARTS.items():
            own = [file for file in files if file.startswith(f"{place.folder}/{theirs}")]
            paths = [Path(ask(fetched(file), f"{label}: {file}", api.endpoint)) for file in own]
            rows = [row for path in paths for row in read_parquet(path)[place.column].to_pylist()]
            found[part] = [words for row in rows if (words := row.split())]
    except (InputError, KeyError, ValueError, OSError) as error:  # of Arrow, too
        raise InputError(f"{name}: {error}; --data names a folder that holds it") from error
    return found
