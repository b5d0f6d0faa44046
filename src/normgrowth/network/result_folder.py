"""The output folder of a result that is written once, at the end, and checked before the measurement starts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normgrowth.results import Result
from normgrowth.workspace import Workspace


class ResultFolder:
    """An output folder; nothing is written if it is None. request: the options that determine the result.

    Raises FolderMismatch if the folder contains another result and `overwrite` is not set.
    """

    def __init__(
        self, folder: Path | str | None, kind: str, request: Mapping[str, Any], overwrite: bool
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.kind, self.request, self.overwrite = kind, request, overwrite
        if self.folder is not None:
            Workspace(self.folder, kind, overwrite=overwrite).check(request)

    def write(self, result: Result) -> None:
        with Workspace.open(self.folder, self.kind, self.request, overwrite=self.overwrite) as workspace:
            workspace.save(result)
