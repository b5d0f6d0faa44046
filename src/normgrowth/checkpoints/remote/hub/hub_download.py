"""Whole files of a revision on the hub, fetched into a folder: for formats that are not read by ranges."""

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
    """Download the weights of one revision into a fresh folder below `into`, and return that folder.

    Only the best format that is there: safetensors, pytorch's .bin, .pt, .pth or .ckpt, TensorFlow,
    distributed checkpoints; with its index, the model's config and the trainer's log, never code and
    never optimizer states. It holds what the folder asked for holds, and is complete; after an error it
    is gone.
    """
    api = api_of(revision.endpoint)
    sizes, index, weights = pick_files(revision)
    try:
        into.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^\w.=-]+", "_", revision.revision)[:60]
        target = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=into))
    except OSError as error:
        raise InputError(f"{into}: cannot hold a download: {error.strerror or error}") from error
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
            "make room, or choose a folder on another disk"
        )


def _download(api: "HfApi", revision: Revision, name: str, size: int, target: Path) -> None:
    """One file, by way of a folder that the library may fill with its notes and the repository's folders."""
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
            f"{revision.label}: {name} came with {file.stat().st_size} bytes, not the {size} listed"
        )
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    file.replace(target / name)
    shutil.rmtree(scratch)


def _silent_bar() -> Any:
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):
        monitor_interval = 0  # or tqdm starts a thread, for a bar that nobody sees

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})

    return Silent
