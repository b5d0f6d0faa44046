"""`Matrix`: one quantity of a result by step and layer, tensor, role or head."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import installed


@dataclass(frozen=True)
class Matrix:
    """One quantity: a row per step (or value of another axis), a column per layer, tensor, role or head."""

    names: list[str]
    layers: list[int | None]
    steps: NDArray[Any]  # ascending
    values: NDArray[np.float64]  # (steps, names); NaN where there is no finite value
    axis: str = "step"

    def to_pandas(self) -> Any:
        """A DataFrame with a row per step and a column per name."""
        pandas = installed("pandas")
        index = pandas.Index(self.steps, name=self.axis)
        return pandas.DataFrame(self.values, index=index, columns=self.names)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The values, for numpy and matplotlib."""
        return np.array(self.values, dtype=dtype, copy=copy)

    def curve(self, name: str) -> NDArray[np.float64]:
        """The values of one name over the steps."""
        if name not in self.names:
            return np.full(len(self.steps), np.nan)
        return self.values[:, self.names.index(name)]

    def drawable(self) -> bool:
        """Whether any value is finite."""
        return bool(np.isfinite(self.values).any())

    def stacks(self) -> dict[str, list[str]]:
        """Names of layers by stack: {"encoder": ["encoder.0", ...], ...}."""
        stacks: dict[str, list[str]] = {}
        for name, layer in zip(self.names, self.layers, strict=True):
            stacks.setdefault(stack_of(name, layer), []).append(name)
        return stacks


def stack_of(name: str, layer: int | None) -> str:
    return name.removesuffix(f".{layer}")
