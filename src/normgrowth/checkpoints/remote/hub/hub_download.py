"""Download the files of a hub revision, for formats that cannot be read by ranges."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.remote.hub.revisions import Revision, api_of, ask, pick_files, shards
from normgrowth.errors import InputError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

COMPANIONS = ("config.json", "trainer_state.json")


def fetch(revision: Revision, into: Path) -> Path:
    """Download the weights of one revision into a new folder below `into`; returns that folder.

    Only the best available format is downloaded: safetensors, PyTorch (.bin, .pt, .pth or .ckpt), TensorFlow or
    distributed checkpoints. The folder also gets its index, the model's config and the trainer's log, but no code and
    no optimizer state. After an error, the folder is removed.
    """
    api = api_of(revision.endpoint)
    sizes, index, weights = pick_files(revision)
    try:
        into.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^\w.=-]+", "_", revision.revision)[:60]
        target = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=into))
    except OSError as error:
        raise InputError(f"{into}: cannot write the download: {error.strerror or error}") from error
    try:
        if index is not None:
            _download(api, revision, index, sizes[index], target)
            weights = shards(revision, index, (target / index).read_bytes(), sizes)
        wanted = [*(name for name in COMPANIONS if name in sizes), *weights]
        check_space(revision.label, sum(sizes[name] for name in wanted), into)
        for name in wanted:
            _download(api, revision, name, sizes[name], target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def check_space(label: str, needed: int, into: Path) -> None:
    free = shutil.disk_usage(into).free
    if needed > free:
        raise InputError(
            f"{label}: needs {needed / 1e9:.3g} GB, but {into} has {free / 1e9:.3g} GB free; "
            "free some space, or choose a folder on another disk"
        )


def _download(api: "HfApi", revision: Revision, name: str, size: int, target: Path) -> None:
    """Download one file, through a temporary folder in which the library also writes metadata and subfolders."""
    scratch = target / ".incoming"

    def transfer() -> str:
        return api.hf_hub_download(
            revision.repo,
            f"{revision.folder}/{name}" if revision.folder else name,
            revision=revision.commit,
            local_dir=scratch,
            tqdm_class=_silent_bar(),
        )

    file = Path(ask(transfer, f"{revision.label}: {name}", api.endpoint))
    if size and file.stat().st_size != size:
        raise InputError(
            f"{revision.label}: {name} has {file.stat().st_size} bytes, but the hub lists {size}"
        )
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    file.replace(target / name)
    shutil.rmtree(scratch)


def _silent_bar() -> Any:
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        monitor_interval = 0  # otherwise tqdm starts a thread for an invisible bar

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    return Silent
