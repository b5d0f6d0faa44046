"""The inputs of `fit`: results, records, folders, CSV files, published data by name, or steps and norms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from normgrowth.errors import InputError
from normgrowth.fit.points import read_csv
from normgrowth.fit.vector_share import layers_level, vector_share
from normgrowth.measurements import Measurement, is_named, is_named_trace, named_series, read_measurement
from normgrowth.moments.levels import DOMINANT, LAYER_MATRICES, MATRICES
from normgrowth.records import Records
from normgrowth.results import Result
from normgrowth.stored_result import FILE
from normgrowth.text import did_you_mean, natural_order

POINTS = "points"  # the level of series that are not from a trace


@dataclass(frozen=True)
class NormSeries:
    """Points to fit. layer: index of the layer, if the series belongs to one."""

    name: str
    steps: ArrayLike
    values: ArrayLike
    layer: int | None = None


@dataclass(frozen=True)
class Data:
    """Series by name, and their origin. parameters: description of the counted parameters.

    matrices: the norms of the matrices, if gains and biases hide them in the norm of the model.
    """

    series: Mapping[str, NormSeries]
    source: str = ""
    parameters: str = ""
    level: str = POINTS
    run: str = ""
    notes: tuple[str, ...] = ()
    matrices: NormSeries | None = None


def read_data(
    data: Result | Records | Path | str | Sequence[Any] | ArrayLike,
    norms: ArrayLike | None,
    *,
    level: str,
    quantity: str,
) -> Data:
    if norms is not None:
        return Data({"": NormSeries("", data, norms)})  # type: ignore[arg-type]
    if isinstance(data, Result | Records):
        return _measured(read_measurement(data), level, quantity)
    if isinstance(data, str | Path):
        return _read(data, level, quantity)
    if isinstance(data, list | tuple) and data and all(map(_is_source, data)):
        return _joined([read_data(one, None, level=level, quantity=quantity) for one in data])
    raise InputError(
        "fit takes a trace, records, a folder, a csv file, or steps and norms; "
        f"got one argument of type {type(data).__name__}"
    )


def _is_source(one: Any) -> bool:
    return isinstance(one, Result | Records | str | Path)


def _read(data: str | Path, level: str, quantity: str) -> Data:
    path = Path(data)
    if path.is_dir() or path.name == FILE:
        folder = path if path.is_dir() else path.parent
        measured = read_measurement(folder, ["model", "part", "layer_matrices", level])
        if level not in measured.records.distinct("level"):  # the error names all levels
            measured = read_measurement(folder)
        return _measured(measured, level, quantity)
    if is_named_trace(data):
        return _measured(read_measurement(data), level, quantity)
    if level != "model":
        raise InputError(f"{data}: level applies only to traces; the columns of a CSV file define its series")
    if is_named(data):
        source, series = named_series(str(data), quantity)
    elif path.is_file():
        source, series = str(data), read_csv(path, quantity)
    else:
        near = did_you_mean(path)
        raise InputError(f"{data}: no such file{near or '; give a csv file or the folder of a trace'}")
    return Data({name: NormSeries(name, *points) for name, points in series.items()}, source)


def _measured(measured: Measurement, level: str, quantity: str) -> Data:
    """Return the series of a trace at this level."""
    records = measured.records
    chosen = records.where(level=level, quantity=quantity)
    runs = chosen.distinct("run")
    if not runs:
        known = ", ".join(map(str, records.distinct("level")))
        raise InputError(f"no {quantity} at level {level}; known levels: {known}")
    found: dict[str, NormSeries] = {}
    for run in runs:
        rows = chosen.where(run=run)
        names, layers = (rows.table[column].to_pylist() for column in ("name", "layer"))
        layer_of = dict(zip(names, layers, strict=True))
        for name in natural_order(layer_of):
            label = name if len(runs) == 1 else f"{run}: {name}"
            found[label] = NormSeries(label, *rows.series(quantity, level=level, name=name), layer_of[name])
    run = str(runs[0]) if len(runs) == 1 else ""
    hidden = vector_share(records) if run and quantity == "norm" and level in ("model", "layer") else 0.0
    if hidden <= DOMINANT:
        return Data(found, measured.source, measured.parameters, level, run)
    said = f"vectors (gains, biases) account for up to {100 * hidden:.1f}% of ‖θ‖²"
    if level == "layer":
        each = layers_level(records, hidden) == LAYER_MATRICES
        fix = f'; level="{LAYER_MATRICES}" (--level {LAYER_MATRICES}) fits the matrices of each layer'
        return Data(
            found, measured.source, measured.parameters, level, run, (f"{said}{fix if each else ''}",)
        )
    matrices = NormSeries(MATRICES, *records.series("norm", level="part", name=MATRICES))
    notes = (f"{said}, so the fits of the matrices come first",)
    return Data(found, measured.source, measured.parameters, level, run, notes, matrices)


def _joined(several: Sequence[Data]) -> Data:
    """Join the series of all sources; each name is prefixed with its source."""
    if len(several) == 1:
        return several[0]
    found: dict[str, NormSeries] = {}
    for number, data in enumerate(several):
        for name, series in data.series.items():
            label = f"{data.source}: {name}" if name else data.source
            label = label if label not in found else f"{label} ({number + 1})"
            found[label] = replace(series, name=label)
    levels, counted = ({getattr(data, key) for data in several} for key in ("level", "parameters"))
    return Data(
        found,
        ", ".join(dict.fromkeys(data.source for data in several)),
        counted.pop() if len(counted) == 1 else "",
        levels.pop() if len(levels) == 1 else POINTS,
    )
