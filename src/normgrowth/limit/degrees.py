"""The degree of every part of a model, what met where, and what is nothing beside the rest in the limit.

rows       one for each submodule: degree of what goes in and of what comes out
sums       where terms of unlike degree met: which was kept, which dropped, which modules they come from
vanished   parameters that no output depends on in the limit, and why
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normgrowth.limit import saturated as limits
from normgrowth.limit.dispatch import MARK
from normgrowth.limit.findings import Finding, messages
from normgrowth.limit.forward_pass.compiled import named_modules
from normgrowth.limit.module_names import place, within
from normgrowth.limit.parameters import growing_parameters
from normgrowth.limit.pass_log import Sum, Tie
from normgrowth.text import by_run, html_table

Degree = Fraction | None  # None: exactly zero
Kind = Literal["bias", "constant", "stream", "branch", "same", "other"]
Why = Literal["zero", "dropped", "unused"]


@dataclass(frozen=True)
class Row:
    """A submodule: one line of the table."""

    module: str
    kind: str  # its class
    degree: Degree
    lower: tuple[Fraction, ...]  # degrees of parts of the output below
    inputs: tuple[Degree, ...]  # degrees of its tensor arguments
    by_run: tuple[Degree, ...]  # degrees of every run; `degree`, `lower` and `inputs` are of the last
    inputs_by_run: tuple[tuple[Degree, ...], ...]  # degrees of its tensor arguments, of every run
    owns: bool  # parameters of its own, beside those of its submodules
    grows: bool  # its output depends on parameters

    @property
    def runs(self) -> int:
        return len(self.by_run)


@dataclass(frozen=True)
class Meeting:
    """A sum whose terms differ in degree."""

    module: str
    kept: Fraction
    dropped: Fraction
    kept_from: str | None  # the module whose output the term is; None: no one module's
    dropped_from: str | None
    dropped_parameters: tuple[str, ...]  # that the dropped term depends on and the kept one does not
    kind: Kind  # what the parameters of the two terms say about the sum, see `_kind`
    runs: tuple[int, ...] = (0,)  # of the module, from 0, in which terms met so


@dataclass(frozen=True)
class Degrees:
    """What `degrees` found. `table()` gives rows for a table, `explain()` says it in words."""

    model: str
    outputs: dict[str, Degree]
    rows: list[Row]
    sums: list[Meeting]
    vanished: dict[str, Why]
    parameters: list[str]
    ties: list[Tie]
    orders: int
    doubtful: int
    cancelled: dict[str, int]
    findings: list[Finding]

    def __repr__(self) -> str:
        """One line: a model has hundreds of submodules."""
        vanished = f"{len(self.vanished):,} of {len(self.parameters):,} parameters vanish"
        return f"Degrees({self.model}; {len(self.rows):,} modules; {vanished})"

    def _repr_html_(self) -> str:
        rows = [(row.module or "(the model)", row.kind, by_run(row.by_run)) for row in self.rows]
        words = [(sentence,) for sentence in self.explain()]
        return html_table(("module", "class", "degree"), rows) + html_table((self.model,), words)

    def table(self) -> list[dict[str, Any]]:
        """Rows as plain values: degrees are whole numbers, or strings such as 1/2; None is exactly zero."""
        return [
            {
                "module": row.module,
                "class": row.kind,
                "degree": plain(row.degree),
                "lower": [plain(degree) for degree in row.lower],
                "inputs": [plain(degree) for degree in row.inputs],
                "runs": row.runs,
                "degree_by_run": [plain(degree) for degree in row.by_run],
                "inputs_by_run": [[plain(degree) for degree in one] for one in row.inputs_by_run],
                **dict(zip(("stack", "block", "part"), place(row.module), strict=True)),
            }
            for row in self.rows
        ]

    def meetings(self) -> list[dict[str, Any]]:
        return [
            {**vars(met), "kept": plain(met.kept), "dropped": plain(met.dropped), **_listed(met)}
            for met in self.sums
        ]

    def explain(self) -> list[str]:
        from normgrowth.limit.explanations import explain

        return explain(self)

    def facts(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "model": self.model,
            "outputs": {name: plain(degree) for name, degree in self.outputs.items()},
            "modules": self.table(),
            "sums": self.meetings(),
            "vanished": self.vanished,
            "parameters": len(self.parameters),
            "ties": [dict(vars(tie)) for tie in self.ties],
            "orders": self.orders,
            "doubtful": self.doubtful,
            "cancelled": self.cancelled,
            "findings": [
                {**vars(finding), "degree": plain(finding.degree), "message": finding.message}
                for finding in self.findings
            ],
            "warnings": messages(self.findings),
            "explanation": self.explain(),
        }


def degrees(
    model: nn.Module,
    *args: Any,
    orders: int | None = None,
    tolerance: float = 256,
    fixed: Sequence[str] = (),
    **inputs: Any,
) -> Degrees:
    """The degree of every submodule's output for these inputs: k, where it grows like c^k with parameters cθ.

    Called like the model. orders, tolerance and fixed are those of `saturated`.
    """
    limit = limits.saturated(model, orders=orders, tolerance=tolerance, fixed=fixed)
    seen: dict[str, list[tuple[Degree, ...]]] = {}
    with _inputs(limit.model, seen):
        limit(*args, **inputs)
    return _described(limit, seen)


def plain(degree: Degree) -> int | str | None:
    if degree is None:
        return None
    return int(degree) if degree.denominator == 1 else str(degree)


def _listed(met: Meeting) -> dict[str, Any]:
    return {"dropped_parameters": list(met.dropped_parameters), "runs": list(met.runs)}


def _described(limit: limits.Limit, seen: Mapping[str, list[tuple[Degree, ...]]]) -> Degrees:
    model = limit.model
    named = growing_parameters(model, limit.fixed)
    names = [name for name, _ in named]
    runs: dict[str, list[Degree]] = {}
    for output in limit.outputs:
        runs.setdefault(output.module, []).append(output.degree)
    modules = dict(named_modules(model))
    last = {output.module: output for output in limit.outputs}
    rows = [
        Row(
            name,
            output.kind,
            output.degree,
            output.lower,
            seen[name][-1] if name in seen else (),
            tuple(runs[name]),
            tuple(
                seen.get(name, [])[-len(runs[name]) :]
            ),  # the pass may have been made again, with more orders
            any(True for _ in modules[name].parameters(recurse=False)),
            output.sources > 0,
        )
        for name, output in last.items()
    ]
    finder = _Origins(limit.outputs)
    sums: dict[Meeting, set[int]] = {}
    for met in limit.sums:
        sums.setdefault(_meeting(met, names, finder, modules), set()).add(met.run)
    dropped = {name for met in limit.sums for name in _named(met.dropped_sources, names)}
    empty = {name for name, parameter in named if not bool(parameter.any())}
    vanished: dict[str, Why] = {
        name: "zero" if name in empty else "dropped" if name in dropped else "unused"
        for name in limit.vanished
    }
    return Degrees(
        type(model).__name__,
        dict(_flat(limit.output_degrees)),
        rows,
        [replace(met, runs=tuple(sorted(runs_of))) for met, runs_of in sums.items()],
        vanished,
        names,
        limit.ties,
        limit.used_orders,
        limit.doubtful,
        limit.cancelled,
        limit.findings,
    )


class _Origins:
    """Which module's output a term is: the outermost that has its degree and depends on its parameters."""

    def __init__(self, outputs: list[limits.Output]) -> None:
        self._found: dict[tuple[Degree, int], list[str]] = {}
        for output in outputs:
            self._found.setdefault((output.degree, output.sources), []).append(output.module)

    def __call__(self, degree: Fraction, sources: int, at: str) -> str | None:
        found = [name for name in self._found.get((degree, sources), []) if name and not within(at, name)]
        return min(found, key=lambda name: name.count("."), default=None) if sources else None


def _meeting(met: Sum, names: list[str], origin: _Origins, modules: Mapping[str, nn.Module]) -> Meeting:
    only = met.dropped_sources & ~met.kept_sources
    kind = _kind(met)
    if met.dropped_sources.bit_count() == 1 and kind != "same" and met.module in modules:
        (name,) = _named(met.dropped_sources, names)
        own = {
            f"{met.module}.{short}" if met.module else short
            for short, _ in modules[met.module].named_parameters(recurse=False)
        }
        kind = "bias" if name in own else kind
    return Meeting(
        met.module,
        met.kept,
        met.dropped,
        origin(met.kept, met.kept_sources, met.module),
        origin(met.dropped, met.dropped_sources, met.module),
        tuple(_named(only, names)),
        kind,
    )


def _kind(met: Sum) -> Kind:
    """stream: the kept term was computed from the dropped one; branch: the dropped one from the kept."""
    kept, dropped = met.kept_sources, met.dropped_sources
    if not dropped:
        return "constant"
    if kept == dropped:
        return "same"
    if not dropped & ~kept:
        return "stream"
    return "branch" if kept and not kept & ~dropped else "other"


def _named(sources: int, names: list[str]) -> list[str]:
    return [name for bit, name in enumerate(names) if sources >> bit & 1]


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Degree]]:
    """The degrees of a model's outputs under the names that it gives them."""
    if value is None or isinstance(value, Fraction):
        yield name or "output", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if item is not None or name:
                yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _flat(item, f"{name}.{number}" if name else f"output.{number}")


@contextmanager
def _inputs(model: nn.Module, seen: dict[str, list[tuple[Degree, ...]]]) -> Iterator[None]:
    """Write down the degrees of what goes into each module."""
    handles: list[Any] = []
    try:
        for name, module in named_modules(model):

            def enter(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
                found = tuple(_degree(leaf) for leaf in leaves if leaf.is_floating_point())
                seen.setdefault(name, []).append(found)

            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _degree(tensor: Tensor) -> Degree:
    """As mode.py hangs it on a storage: that of the whole, of which the tensor may be a part."""
    try:
        growth = getattr(tensor.untyped_storage(), MARK, None)
    except (NotImplementedError, RuntimeError):  # sparse, meta: nothing grows there
        growth = None
    if growth is None:
        return Fraction(0)
    return None if growth.zero else growth.degree
