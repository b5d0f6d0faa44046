"""The pass of `degrees`: runs a model in its limit and describes the degrees of its parts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from normgrowth.errors import InputError
from normgrowth.limit import saturated as limits
from normgrowth.limit.dispatch import MARK
from normgrowth.limit.dispatch.marked_storage import torch_storage
from normgrowth.limit.explanations import explanation
from normgrowth.limit.forward_pass.compiled import named_modules
from normgrowth.limit.forward_pass.saved_state import SavedState
from normgrowth.limit.growing_parameters import growing_parameters
from normgrowth.limit.limit_findings import messages
from normgrowth.limit.module_names import place, within
from normgrowth.limit.pass_log import Sum
from normgrowth.limit.result import (
    Degree,
    Degrees,
    DroppedTerm,
    LimitFinding,
    ModuleDegree,
    SumKind,
    TiedScores,
    Why,
)
from normgrowth.records import Block, Records


def measure_degrees(
    model: nn.Module,
    args: Sequence[Any],
    inputs: Mapping[str, Any],
    *,
    orders: int | None,
    tolerance: float,
    fixed: Sequence[str],
) -> Degrees:
    """The degrees of a model called with these arguments."""
    limit = limits.saturated(model, orders=orders, tolerance=tolerance, fixed=fixed)
    seen: dict[str, list[tuple[Degree, ...]]] = {}
    saved = SavedState((args, inputs), limit.model.modules())
    try:
        with _inputs(limit.model, seen):
            limit(*args, **inputs)
        found = _described(limit, seen)
    finally:  # the model's buffers must not keep degrees
        saved.restore()
    return replace(found, explanation=tuple(explanation(found)), fixed=tuple(fixed))


def _described(limit: limits.Limit, seen: Mapping[str, list[tuple[Degree, ...]]]) -> Degrees:
    model = limit.model
    outputs = dict(_flat(limit.output_degrees))
    if not outputs:
        raise InputError(
            f"{type(model).__name__} returns {type(limit.output_degrees).__name__}, which contains no tensor; "
            "return a tensor, a tuple, a dictionary or an output of transformers"
        )
    named = growing_parameters(model, limit.fixed)
    names = [name for name, _ in named]
    runs: dict[str, list[Degree]] = {}
    for output in limit.outputs:
        runs.setdefault(output.module, []).append(output.degree)
    modules = dict(named_modules(model))
    last = {output.module: output for output in limit.outputs}
    rows = [
        ModuleDegree(
            name,
            output.kind,
            output.degree,
            output.lower,
            seen[name][-1] if name in seen else (),
            tuple(runs[name]),
            tuple(seen.get(name, [])[-len(runs[name]) :]),  # drops an earlier pass that computed fewer orders
            any(True for _ in modules[name].parameters(recurse=False)),
            output.sources > 0,
        )
        for name, output in last.items()
    ]
    finder = _Origins(limit.outputs)
    sums: dict[DroppedTerm, set[int]] = {}
    for met in limit.sums:
        sums.setdefault(_dropped_term(met, names, finder, modules), set()).add(met.run)
    dropped = {name for met in limit.sums for name in _named(met.dropped_sources, names)}
    empty = {name for name, parameter in named if not bool(parameter.any())}
    vanished: dict[str, Why] = {
        name: "zero" if name in empty else "dropped" if name in dropped else "unused"
        for name in limit.vanished
    }
    return Degrees(
        records=_records(type(model).__name__, rows),
        model=type(model).__name__,
        outputs=outputs,
        modules=tuple(rows),
        dropped_terms=tuple(replace(met, runs=tuple(sorted(runs_of))) for met, runs_of in sums.items()),
        vanished=vanished,
        parameters=tuple(names),
        ties=tuple(TiedScores(**vars(tie)) for tie in limit.ties),
        orders=limit.used_orders,
        undecided_values=limit.doubtful,
        cancelled=dict(limit.cancelled),
        findings=tuple(LimitFinding(**vars(one), message=one.message) for one in limit.findings),
        problems=tuple(messages(limit.findings)),
    )


def _records(run: str, rows: Sequence[ModuleDegree]) -> Records:
    """One row per module; NaN if its output is exactly zero."""
    names = [row.module or "model" for row in rows]
    layers = [place(row.module).block for row in rows]
    values = np.array([[np.nan if row.degree is None else float(row.degree) for row in rows]])
    block = Block("module", names, layers, [None] * len(rows), [0], {"degree": values})
    return Records.from_blocks(run, [block])


class _Origins:
    """Finds the module that computed a term: the outermost with the same degree and parameters."""

    def __init__(self, outputs: list[limits.Output]) -> None:
        self._found: dict[tuple[Degree, int], list[str]] = {}
        for output in outputs:
            self._found.setdefault((output.degree, output.sources), []).append(output.module)

    def __call__(self, degree: Fraction, sources: int, at: str) -> str | None:
        found = [name for name in self._found.get((degree, sources), []) if name and not within(at, name)]
        return min(found, key=lambda name: name.count("."), default=None) if sources else None


def _dropped_term(
    met: Sum, names: list[str], origin: _Origins, modules: Mapping[str, nn.Module]
) -> DroppedTerm:
    only = met.dropped_sources & ~met.kept_sources
    kind = _kind(met)
    if met.dropped_sources.bit_count() == 1 and kind != "same" and met.module in modules:
        (name,) = _named(met.dropped_sources, names)
        own = {
            f"{met.module}.{short}" if met.module else short
            for short, _ in modules[met.module].named_parameters(recurse=False)
        }
        kind = "bias" if name in own else kind
    return DroppedTerm(
        met.module,
        met.kept,
        met.dropped,
        origin(met.kept, met.kept_sources, met.module),
        origin(met.dropped, met.dropped_sources, met.module),
        tuple(_named(only, names)),
        kind,
    )


def _kind(met: Sum) -> SumKind:
    """The relation of the terms; "stream": the kept term was computed from the dropped term; "branch": vice versa."""
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
    """The degrees of a model's outputs, by their names."""
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
    """Record the degrees of the inputs of each module."""
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
    """The degree of the tensor's storage, of which the tensor may be a part."""
    growth = getattr(torch_storage(tensor), MARK, None)
    if growth is None:
        return Fraction(0)
    return None if growth.zero else growth.degree
