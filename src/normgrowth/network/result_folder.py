"""The output folder of a result that is written once, at the end: checked before anything is measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normgrowth.results import Result
from normgrowth.workspace import Workspace


class ResultFolder:
    """An output folder, or none. request: the options that decide the result.

    Raises FolderMismatch if the folder holds another result, unless it is to be overwritten.
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
