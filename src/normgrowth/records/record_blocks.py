"""Blocks: how measurements hand their numbers to `Records.from_blocks`, which makes one table of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.serialization.record_schema import AXES, COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = ("run", "level", "name", "role", "quantity", "reference")
ONE_CHUNK = 2**20  # larger tables stay in chunks, which share memory


@dataclass(frozen=True)
class Block:
    """Rows that share a level: one value for each quantity, item and step."""

    level: str
    names: Sequence[str]
    layers: Sequence[int | None]
    roles: Sequence[str | None]
    steps: Sequence[int] | Sequence[float]
    values: Mapping[str, NDArray[np.float64]]  # quantity -> (steps, items)
    reference: str | None = None  # of all quantities
    axis: str = "step"  # the column that `steps` belongs to
    constants: Mapping[str, float] = field(default_factory=dict)  # other axis columns, each with one value

    @staticmethod
    def of_model(steps: Sequence[int] | Sequence[float], values: Mapping[str, Any], **axes: Any) -> "Block":
        """Rows of the model. values: for each quantity a number, or one per step."""
        columns = {name: np.reshape(np.asarray(value, np.float64), (-1, 1)) for name, value in values.items()}
        return Block("model", ["model"], [None], [None], steps, columns, **axes)


def table_of(run: str, blocks: Iterable[Block]) -> "pa.Table":
    """The table of all blocks, with a row for each number."""
    chunks = _Chunks(run)
    for block in blocks:
        chunks.add(block)
    return chunks.table()


def concatenated(tables: "Sequence[pa.Table]") -> "pa.Table":
    """The concatenated tables, with one shared dictionary per text column."""
    import pyarrow as pa

    if not tables:
        return table_of("", [])
    return compact(pa.concat_tables(tables, promote_options="default").unify_dictionaries())


def storable(word: str) -> str:
    """The word with invalid UTF-8 escaped: names from files and file systems can contain it."""
    return word if word.isascii() else word.encode("utf-8", "backslashreplace").decode()


class _Chunks:
    """The chunks of a table, one for each quantity of each block.

    Chunks share the memory of equal columns, so a row takes little more than its value: a long run has 40 million.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._words: dict[str, dict[str, int]] = {column: {} for column in TEXTS}
        self._chunks: list[dict[str, pa.Array]] = []
        self._same: dict[int | None, pa.Array] = {}  # word -> codes of rows that all have it
        self._last: tuple[Block, dict[str, pa.Array]] | None = None
        self._axes: list[str] = []

    def add(self, block: Block) -> None:
        import pyarrow as pa

        items = self._items(block)
        size = len(block.names) * len(block.steps)
        constants = {
            name: pa.array(np.full(size, value, _number(name))) for name, value in block.constants.items()
        }
        self._axes += [name for name in (*items, *constants) if name in AXES and name not in self._axes]
        for quantity, values in block.values.items():
            texts = {
                "run": self._run,
                "level": block.level,
                "quantity": quantity,
                "reference": block.reference,
            }
            same = {column: self._repeated(column, word, size) for column, word in texts.items()}
            # Rows are ordered by quantity, item and step, so the rows of one series are contiguous.
            value = np.array(np.transpose(values), np.float64, order="C").reshape(-1)
            self._chunks.append({**same, **items, **constants, "value": pa.array(value)})

    def table(self) -> "pa.Table":
        import pyarrow as pa

        kinds = {"step": pa.int64(), "layer": pa.int32(), "value": pa.float64()}
        kinds |= {name: pa.from_numpy_dtype(_number(name)) for name in self._axes}
        columns: dict[str, pa.ChunkedArray] = {}
        for column in (*COLUMNS, *self._axes):
            chunks = [
                chunk.get(column, pa.nulls(len(chunk["value"]), kinds.get(column, pa.int32())))
                for chunk in self._chunks
            ]
            if column in TEXTS:
                words = pa.array(self._words[column], pa.string())
                chunks = [pa.DictionaryArray.from_arrays(codes, words, safe=False) for codes in chunks]
            columns[column] = pa.chunked_array(
                chunks, kinds.get(column, pa.dictionary(pa.int32(), pa.string()))
            )
        return compact(pa.table(columns))

    def _items(self, block: Block) -> "dict[str, pa.Array]":
        """The columns that are the same for all quantities; blocks often share their items and steps."""
        import pyarrow as pa

        if self._last is not None:
            last, columns = self._last
            shared = ("names", "layers", "roles", "steps")
            if last.axis == block.axis and all(getattr(last, a) is getattr(block, a) for a in shared):
                return columns
        count = len(block.steps)
        layers = np.array([-1 if n is None else n for n in block.layers], np.int32).repeat(count)
        columns = {
            block.axis: pa.array(np.tile(np.asarray(block.steps, _number(block.axis)), len(block.names))),
            "name": self._coded("name", block.names, count),
            "layer": pa.array(layers, mask=layers < 0),
            "role": self._coded("role", block.roles, count),
        }
        self._last = block, columns
        return columns

    def _coded(self, column: str, words: Sequence[str | None], count: int) -> "pa.Array":
        import pyarrow as pa

        codes = np.array([self._code(column, word) for word in words], np.int32).repeat(count)
        return pa.array(codes, mask=codes < 0)

    def _repeated(self, column: str, word: str | None, size: int) -> "pa.Array":
        import pyarrow as pa

        code = self._code(column, word)
        known = self._same.get(code)
        if known is None or len(known) < size:
            known = pa.nulls(size, pa.int32()) if code < 0 else pa.array(np.full(size, code, np.int32))
            self._same[code] = known
        return known.slice(0, size)

    def _code(self, column: str, word: str | None) -> int:
        words = self._words[column]
        return -1 if word is None else words.setdefault(storable(word), len(words))


def _number(column: str) -> type[np.generic]:
    return np.float64 if AXES.get(column) == "double" else np.int64


def compact(table: "pa.Table") -> "pa.Table":
    """The table in one chunk, unless it is so large that a copy of it takes much memory."""
    return table if table.num_rows > ONE_CHUNK else table.combine_chunks()
