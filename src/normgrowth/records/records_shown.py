"""Records in one line, and as HTML for a notebook: the content of the table, and the change of the model."""

from collections.abc import Sequence

from normgrowth.records.record_table import Records
from normgrowth.text import html_table, listed, visible

# Quantities of the model that a notebook shows.
COMMON = ("norm", "step_size", "cosine", "alignment", "saturation", "dev_loss")


def as_line(records: Records) -> str:
    """One line, because Arrow's repr shows the first rows of every column."""
    runs = visible(listed(records.distinct("run")))
    return f"Records({len(records):,} rows; runs: {runs}; steps: {_steps(records)})"


def as_html(records: Records) -> str:
    """Two tables for a notebook. Ten million rows take a second."""
    pairs = records.table.unify_dictionaries().group_by(["level", "name"]).aggregate([])
    names = [(pair["values"], pair["counts"]) for pair in pairs["level"].value_counts().to_pylist()]
    there = [
        ("runs", listed(records.distinct("run"))),
        ("steps", _steps(records)),
        ("levels", listed(f"{level} ({count:,})" for level, count in names)),
        ("quantities", listed(records.distinct("quantity"))),
    ]
    titles = ("run", "quantity", "first step", "value", "last step", "value")
    ends = _ends(records)
    changed = html_table(titles, ends) if ends else ""
    return html_table(("records", f"{len(records):,} rows"), there) + changed


def _steps(records: Records) -> str:
    import pyarrow.compute as pc

    step = records.table["step"]
    first, last = pc.min_max(step).as_py().values()  # pyright: ignore[reportAttributeAccessIssue]
    count = pc.count_distinct(step).as_py()  # pyright: ignore[reportAttributeAccessIssue]
    return f"{count:,}, from {first:,} to {last:,}" if count else "none"


def _ends(records: Records) -> list[Sequence[object]]:
    """For each run and common quantity of the model: step and value of the first and of the last row."""
    model = (
        records.where(level="model", scale=None).compared_with().table.unify_dictionaries().sort_by("step")
    )
    ends = [(column, end) for end in ("first", "last") for column in ("step", "value")]
    found = model.group_by(["run", "quantity"], use_threads=False).aggregate(ends).to_pylist()
    columns = ["run", "quantity", *map("_".join, ends)]
    return [[row[c] for c in columns] for name in COMMON for row in found if row["quantity"] == name]
