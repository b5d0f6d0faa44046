"""Parameters: the layer and role of each tensor of a checkpoint, and whether it is counted."""

TYPE_CHECKING = False  # not imported from typing, so that `import normgrowth` stays fast
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from normgrowth.checkpoints.parameters.parameter_list import Parameters


def parameters(
    source: "str | Path | Sequence[str | Path]",
    *,
    include: str = "blocks",
    select: str | None = None,
    exclude: str | None = None,
    endpoint: str | None = None,
    out: "Path | str | None" = None,
    overwrite: bool = False,
) -> "Parameters":
    """The layer and role of each tensor of the first checkpoint of a source, and whether it is counted.

    include, select, exclude: which parameters are counted, as for `trace`. Only the header is read; for local
    checkpoints, also the values of heads that may be copies of their embedding.
    out: output folder. overwrite: replace another result in this folder.

    >>> counted = ng.parameters("checkpoints").counted
    >>> counted[0].name, counted[0].layer, counted[0].role
    ('transformer.h.0.attn.c_attn.bias', 0, 'attention.qkv')
    """
    import warnings
    from dataclasses import asdict

    from normgrowth.checkpoints.parameters.parameter_list import list_parameters
    from normgrowth.checkpoints.parameters.selection import Selection
    from normgrowth.checkpoints.series import open_source
    from normgrowth.errors import SeriesWarning
    from normgrowth.measurements import where
    from normgrowth.workspace import ResultFolder

    selection = Selection(include, select, exclude)
    request = {"source": where(source), **asdict(selection), "endpoint": endpoint}
    folder = ResultFolder(out, "parameters", request, overwrite)
    series = open_source(source, endpoint=endpoint)
    found = list_parameters(series, selection)
    for note in found.notes:
        warnings.warn(note, SeriesWarning, stacklevel=2)
    folder.write(found)
    return found
