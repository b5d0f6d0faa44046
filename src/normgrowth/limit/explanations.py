"""Explains the degrees of a model in sentences, from the records of one pass."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from normgrowth.limit.module_names import counted, grouped_modules, listed, module_labels, place, spans

if TYPE_CHECKING:
    from normgrowth.limit.result import Degree, Degrees, DroppedTerm, ModuleDegree


def explanation(found: "Degrees") -> list[str]:
    parts: Sequence[Callable[[Degrees], Iterable[str]]] = (
        _outputs,
        _norms,
        _saturating,
        _products,
        _biases,
        _constants,
        _sums,
        _vanished,
        _ties,
        _doubts,
    )
    return [sentence for part in parts for sentence in part(found)]


def _outputs(found: "Degrees") -> Iterator[str]:
    said = [f"{name} has degree {_degree(degree)}" for name, degree in found.outputs.items()]
    if said:
        yield f"{found.model}: {listed(said)}; degree k grows like c^k when all parameters are multiplied by c."


def _norms(found: "Degrees") -> Iterator[str]:
    """Norms with a gain: modules with own parameters and output degree 1 for every input degree."""
    for kind, rows in _norm_classes(found).items():
        yield (
            f"{kind} returns degree 1 for inputs of degree "
            f"{_degrees(one[0] for row in rows for one in row.inputs_by_run if one)} "
            f"({counted(len(rows), 'module')}): it normalizes the input to degree 0, and its gain has degree 1."
        )


def _norm_classes(found: "Degrees") -> "dict[str, list[ModuleDegree]]":
    classes = _by_class(row for row in found.modules if row.owns and row.inputs)
    return {
        kind: rows
        for kind, rows in classes.items()
        if {row.inputs[0] for row in rows} - {None, Fraction(0), Fraction(1)}
        and all(row.degree == 1 for row in rows)
    }


def _saturating(found: "Degrees") -> Iterator[str]:
    """Modules without parameters with degree 0 for inputs of positive degree: steps, signs, norms without a gain."""
    rows = (
        row
        for row in found.modules
        if not row.owns and row.grows and row.degree == 0 and not _has_parts(found, row)
    )
    for kind, alike in _by_class(row for row in rows if row.inputs and (row.inputs[0] or 0) > 0).items():
        entering = {one[0] for row in alike for one in row.inputs_by_run if one}
        yield (
            f"{kind} returns degree 0 for inputs of degree {_degrees(entering)} "
            f"({listed(module_labels(row.module for row in alike))}): its output stays bounded."
        )


def _products(found: "Degrees") -> Iterator[str]:
    """Modules whose input degree is the sum of the degrees of two earlier modules, as after a gate."""
    before: dict[str, list[ModuleDegree]] = {}
    gates: list[tuple[ModuleDegree, ModuleDegree, ModuleDegree]] = []
    entered = {row.module: row.inputs for row in found.modules}
    for row in found.modules:
        parent, _, _ = row.module.rpartition(".")
        earlier = before.setdefault(parent, [])
        if row.inputs and (wanted := row.inputs[0]) is not None and wanted > 0:
            known = {sibling.degree for sibling in earlier} | set(entered.get(parent, ()))
            if wanted not in known and (pair := _pair(earlier, wanted)) is not None:
                gates.append((*pair, row))
        earlier.append(row)
    for label, alike in grouped_modules(
        gates,
        lambda gate: gate[2].module,
        lambda gate: (*(row.degree for row in gate), *(row.class_name for row in gate)),
    ):
        one, other, after = alike[0]
        yield (
            f"{label} gets an input of degree {_degree(after.inputs[0])}, the degree of a product of {_last(one)} "
            f"({_degree(one.degree)}) and {_last(other)} ({_degree(other.degree)}), as in a gate, "
            f"and returns degree {_degree(after.degree)}."
        )


def _pair(rows: list["ModuleDegree"], wanted: Fraction) -> "tuple[ModuleDegree, ModuleDegree] | None":
    """The latest two modules with positive degrees that add up to `wanted`."""
    for j in range(len(rows) - 1, 0, -1):
        for i in range(j - 1, -1, -1):
            one, other = rows[i].degree, rows[j].degree
            if one is not None and other is not None and min(one, other) > 0 and one + other == wanted:
                return rows[i], rows[j]
    return None


def _biases(found: "Degrees") -> Iterator[str]:
    kinds = {row.module: row.class_name for row in found.modules}
    owners = {kind: len(rows) for kind, rows in _by_class(row for row in found.modules if row.owns).items()}
    by_class: dict[str, list[DroppedTerm]] = {}
    for met in found.dropped_terms:
        if met.kind == "bias" and met.module in kinds:
            by_class.setdefault(kinds[met.module], []).append(met)
    for kind, sums in by_class.items():
        modules = {met.module for met in sums}
        which = f"every {kind}"
        if len(modules) < owners[kind]:
            which = f"{len(modules)} of {counted(owners[kind], 'module')} of class {kind}"
        names = {name.rpartition(".")[2] for met in sums for name in met.dropped_parameters}
        yield (
            f"In {which} the {' or '.join(sorted(names)) or 'bias'} vanishes: degree "
            f"{_degrees(met.dropped for met in sums)} vs. a product of degree "
            f"{_degrees(met.kept for met in sums)}."
        )


def _constants(found: "Degrees") -> Iterator[str]:
    kinds = {row.module: row.class_name for row in found.modules}
    by_class: dict[str, list[DroppedTerm]] = {}
    for met in found.dropped_terms:
        if met.kind == "constant":
            by_class.setdefault(kinds.get(met.module, found.model), []).append(met)
    norms = _norm_classes(found)
    for kind, sums in by_class.items():
        yield (
            f"In {counted(len({met.module for met in sums}), 'module')} of class {kind} a constant (degree "
            f"{_degrees(met.dropped for met in sums)}{', such as eps' if kind in norms else ''}) vanishes "
            f"compared with degree {_degrees(met.kept for met in sums)}."
        )


def _sums(found: "Degrees") -> Iterator[str]:
    blocks: dict[str, set[int]] = {}
    for row in found.modules:
        stack, block, _ = place(row.module)
        if block is not None:
            blocks.setdefault(stack, set()).add(block)
    if all(met.kind == "constant" for met in found.dropped_terms):
        yield "Apart from constants, all terms of every sum have the same degree: no branch is dropped."
    rest = [met for met in found.dropped_terms if met.kind not in ("bias", "constant")]
    for label, alike in grouped_modules(rest, lambda met: met.module, _alike):
        here = {place(met.module).block for met in alike}
        stack = place(alike[0].module).stack
        every = " (every block)" if len(here) > 1 and here == blocks.get(stack) else ""
        yield f"{label or found.model}{every}{_when(alike[0], found)}: {_met(alike)}"


def _when(met: "DroppedTerm", found: "Degrees") -> str:
    """The runs that a sentence is about, if the module ran several times and not all runs have this sum."""
    total = next((row.runs for row in found.modules if row.module == met.module), 1)
    if len(met.runs) >= total:
        return ""
    if met.runs == (0,):
        return f" (first of {total} runs)"
    return f" (runs {spans(run + 1 for run in met.runs)} of {total})"


def _alike(met: "DroppedTerm") -> tuple[object, ...]:
    """A key: sums of several blocks with the same key share one sentence."""
    origin = {"stream": met.kept_from, "branch": met.dropped_from}.get(met.kind)
    own = None if origin is None else place(origin)
    inside = own is not None and own[:2] == place(met.module)[:2]
    other = _here(met.dropped_from, met) if met.kind == "stream" else None
    return met.kind, met.kept, met.dropped, own.rest if own and inside else origin, other, met.runs


def _here(name: str | None, met: "DroppedTerm") -> str | None:
    """The part of the block that a term comes from."""
    if name is None or (there := place(name))[:2] != place(met.module)[:2] or there.block is None:
        return None
    return there.rest or None


def _inside(name: str, met: "DroppedTerm") -> str:
    return _here(name, met) or name


def _met(sums: list["DroppedTerm"]) -> str:
    first = sums[0]
    kept, dropped = _degree(first.kept), _degree(first.dropped)
    kept_from, dropped_from = (
        listed(
            module_labels(_inside(name, met) for met in sums if (name := getattr(met, side)) is not None), 2
        )
        for side in ("kept_from", "dropped_from")
    )
    if first.kind == "stream":
        stream = f"{dropped_from} " if _here(first.dropped_from, first) else ""
        return (
            f"{kept_from or 'a branch'} (degree {kept}) outgrows the residual stream that it was computed "
            f"from, {stream}(degree {dropped}): the stream is dropped."
        ).replace(", (", " (")
    if first.kind == "branch":
        return (
            f"{dropped_from or 'a branch'} (degree {dropped}) vanishes compared with the residual stream "
            f"(degree {kept}): the branch is dropped."
        )
    if first.kind == "same":
        return f"two terms depend on the same parameters; the term of degree {kept} outgrows that of degree {dropped}."
    only = module_labels(name for met in sums for name in met.dropped_parameters)
    ours = f", which depends on {listed(only)}" if only and not dropped_from else ""
    other = f"{dropped_from or 'another'} (degree {dropped}){ours}"
    return f"{kept_from or 'a term'} (degree {kept}) outgrows {other}, which is dropped."


def _vanished(found: "Degrees") -> Iterator[str]:
    kinds = {row.module: row.class_name for row in found.modules}
    for why, said in (
        ("dropped", "Vanish in the limit because their terms are dropped"),
        ("zero", "Exactly zero, so without a degree"),
        ("unused", "Not used by the outputs"),
    ):
        names = [name for name, reason in found.vanished.items() if reason == why]
        if names:
            count = f"{len(names):,} of {len(found.parameters):,} parameters"
            yield f"{said} ({count}): {listed(covering_modules(names, found.parameters, kinds), 8)}."


def covering_modules(
    names: Collection[str], parameters: Sequence[str], kinds: Mapping[str, str]
) -> list[str]:
    """A short description of many parameters: whole modules ("all of X"), then whole classes ("the bias of every Y").

    kinds: the class of each module.
    """
    meant, left = set(names), dict.fromkeys(names)
    modules: dict[str, set[str]] = {}
    alike: dict[tuple[str, str], set[str]] = {}
    for name in parameters:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            modules.setdefault(".".join(parts[:depth]), set()).add(name)
        alike.setdefault((kinds.get(".".join(parts[:-1]), ""), parts[-1]), set()).add(name)
    whole = []
    for module in sorted(modules, key=lambda module: module.count(".")):
        if modules[module] <= left.keys():
            whole.append(module)
            left = {name: None for name in left if name not in modules[module]}
    said = [f"all of {label}" for label in module_labels(module for module in modules if module in whole)]
    for (kind, last), everywhere in alike.items():
        others = sorted(everywhere - meant)
        if kind and len(everywhere) > 1 + 4 * len(others) and everywhere & left.keys():
            but = f" except {listed([name.rpartition('.')[0] for name in others])}" if others else ""
            said.append(f"the {last} of every {kind}{but}")
            left = {name: None for name in left if name not in everywhere}
    return said + module_labels(left)


def _ties(found: "Degrees") -> Iterator[str]:
    if not found.ties:
        return
    rows, tied, near, uniform, undecided = (
        sum(getattr(tie, name) for tie in found.ties)
        for name in ("rows", "tied", "near", "uniform", "undecided")
    )
    where = listed(module_labels(tie.module for tie in found.ties))
    text = f"{tied:,} of {rows:,} softmax rows have several keys with the largest score ({where})"
    no_matter = (
        ""
        if found.undecided_values
        else ", but this does not change the output: the tied keys have equal values"
    )
    details = [
        f"in {uniform:,} they get equal weight" if uniform else "",
        f"in {tied - uniform:,} a lower order breaks the tie" if tied > uniform else "",
        f"{near:,} are equal only within rounding" if near else "",
        f"{undecided:,} might be decided by orders that were not computed{no_matter}" if undecided else "",
    ]
    yield "; ".join(filter(None, [text, *details])) + "."


def _doubts(found: "Degrees") -> Iterator[str]:
    if found.cancelled:
        where = listed(module_labels(found.cancelled))
        yield f"Leading terms cancel to exactly 0 without a computed lower order in {where}."
    if found.undecided_values:
        values = (
            "1 value depends" if found.undecided_values == 1 else f"{found.undecided_values:,} values depend"
        )
        yield (
            f"{values} on orders below the {counted(found.orders, 'computed order')}; more orders may decide."
        )


def _by_class(rows: Iterable["ModuleDegree"]) -> "dict[str, list[ModuleDegree]]":
    found: dict[str, list[ModuleDegree]] = {}
    for row in rows:
        found.setdefault(row.class_name, []).append(row)
    return found


def _has_parts(found: "Degrees", row: "ModuleDegree") -> bool:
    return any(other.module.startswith(f"{row.module}.") for other in found.modules) or not row.module


def _last(row: "ModuleDegree") -> str:
    return row.module.rpartition(".")[2]


def _degree(degree: "Degree") -> str:
    return "none (exactly 0)" if degree is None else str(degree)


def _degrees(degrees: "Iterable[Degree]") -> str:
    found = sorted({degree for degree in degrees if degree is not None})
    words = [str(degree) for degree in found]
    if len(words) > 3:
        return f"{words[0]} to {words[-1]}"
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else "0"
