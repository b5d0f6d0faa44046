"""One revision of a hub repository as a checkpoint. Its files are found when it is first opened."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from normgrowth.checkpoints.checkpoint import Checkpoint
from normgrowth.checkpoints.file_groups import of_best_format
from normgrowth.checkpoints.formats.registry import FORMATS
from normgrowth.checkpoints.remote.discovery import remote_files
from normgrowth.checkpoints.remote.hub.revisions import Revision, list_files, why_nothing
from normgrowth.checkpoints.remote.remote_checkpoint import named
from normgrowth.checkpoints.remote.remote_file import RemoteFile
from normgrowth.checkpoints.remote.session import LazyValue, RemoteSession
from normgrowth.checkpoints.remote.transport import AT_ONCE
from normgrowth.checkpoints.remote.web.website import HubFiles
from normgrowth.errors import InputError


@dataclass(frozen=True, eq=False)
class HubCheckpoint:
    """The weights of a revision in the best available format: safetensors, PyTorch, TensorFlow or distributed."""

    revision: Revision
    session: RemoteSession
    _found: LazyValue[RemoteFile] = field(default_factory=LazyValue, repr=False)

    def open(self) -> Checkpoint:
        return self._found(self.find).open()

    def find(self) -> RemoteFile:
        """The files of the weights, from a listing of the revision."""
        label, store = self.revision.label, HubFiles(self.revision, self.session)
        sizes = list_files(self.revision)
        best = of_best_format(name for name in sizes if "/" not in name)
        found = remote_files(store, dict.fromkeys(best), self.session)
        found = [file for file in found if FORMATS[file.format].is_index][:1] or found
        if not found:
            raise InputError(f"{label}: {why_nothing(self.revision, sizes)}")
        if len(found) > 1:
            raise InputError(f"{label}: expected one checkpoint, got {len(found)}")
        file = replace(found[0], alone=True)
        for name in file.files:
            if name not in sizes:
                raise InputError(f"{label}: {file.name} lists {name!r}, which the repository does not have")
        with ThreadPoolExecutor(AT_ONCE) as threads:
            infos = threads.map(lambda name: store.stat(name, named(label, name)), file.files)
            file.files.update(zip(list(file.files), infos, strict=True))
        for name, info in file.files.items():
            if info is not None and sizes[name] and sizes[name] != info.size:
                raise InputError(f"{label}: {name} has {info.size} bytes, but the hub lists {sizes[name]}")
        return file
