"""Read Penn Treebank and WikiText-2 from the hub, from parquet files only, so no code of the data set is run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from normgrowth.checkpoints.remote.hub.revisions import api_of, ask
from normgrowth.checkpoints.remote.retry import TIMEOUT
from normgrowth.errors import InputError
from normgrowth.stored_result import read_parquet


@dataclass(frozen=True)
class DatasetPlace:
    """Location of a corpus on the hub: `folder`/train…parquet, validation… and test…, one sentence per row."""

    repository: str
    folder: str
    column: str
    revision: str = "main"


PLACES = {
    "penn": DatasetPlace("ptb-text-only/ptb_text_only", "penn_treebank", "sentence", "refs/convert/parquet"),
    "wikitext-2": DatasetPlace("Salesforce/wikitext", "wikitext-2-v1", "text"),
}
PARTS = {"train": "train", "valid": "validation", "test": "test"}  # part -> its name on the hub


def from_hub(name: str, endpoint: str | None = None) -> dict[str, list[list[str]]]:
    """Return the sentences of each part as lists of words; files are stored in the cache of huggingface_hub."""
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
    except (InputError, KeyError, ValueError, OSError) as error:  # Arrow raises subclasses of these
        raise InputError(f"{name}: {error}; set --data to a folder that contains it") from error
    return found
