"""`degrees`: the degree of every part of a model, which sums drop a term, and what vanishes in the limit.

A part of degree k grows like c^k when all parameters are multiplied by c. The records have the quantity `degree` of
every submodule (level "module"); NaN where its output is exactly zero.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from normgrowth.errors import InputError
from normgrowth.results import Provenance, Result
from normgrowth.text import one_line, visible

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normgrowth.network.models.load import LoadedModel

Degree = Fraction | None  # None: exactly zero
SumKind = Literal["bias", "constant", "stream", "branch", "same", "other"]
Why = Literal["zero", "dropped", "unused"]


@dataclass(frozen=True)
class ModuleDegree:
    """A submodule: one line of the table.

    lower: degrees of lower parts of its output. inputs: degrees of its tensor arguments. by_run, inputs_by_run: of
    every run of a module that runs several times; `degree`, `lower` and `inputs` are those of the last run. owns: it
    has parameters of its own, apart from those of its submodules. grows: its output depends on parameters.
    """

    __repr__ = one_line

    module: str
    class_name: str
    degree: Degree
    lower: tuple[Fraction, ...] = ()
    inputs: tuple[Degree, ...] = ()
    by_run: tuple[Degree, ...] = ()
    inputs_by_run: tuple[tuple[Degree, ...], ...] = ()
    owns: bool = False
    grows: bool = False

    @property
    def runs(self) -> int:
        return len(self.by_run)


@dataclass(frozen=True)
class DroppedTerm:
    """A sum whose terms differ in degree: the lower one is dropped in the limit.

    kept_from, dropped_from: the module whose output the term is; None: no single module's. dropped_parameters: those
    that the dropped term depends on and the kept one does not. kind: how the two terms are related: the dropped one is
    a bias, a constant, or the residual stream that the kept one was computed from; the dropped one is a branch that
    was computed from the kept one; both depend on the same parameters. runs: of the module, from 0.
    """

    module: str
    kept: Fraction
    dropped: Fraction
    kept_from: str | None
    dropped_from: str | None
    dropped_parameters: tuple[str, ...]
    kind: SumKind
    runs: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class TiedScores:
    """Softmax rows whose largest score several keys share.

    rows: all softmax rows of the module. tied: rows with a tie in the leading order; near: those of them that are
    equal only within the tolerance. uniform: rows that no order decides: their keys get equal weights. undecided:
    rows that an order left out might decide.
    """

    module: str
    rows: int
    tied: int
    near: int
    uniform: int
    undecided: int


@dataclass(frozen=True)
class LimitFinding:
    """Something that a reader of a limit may not expect, such as a finite mask that growing scores outgrow."""

    kind: str
    module: str
    degree: Fraction
    operation: str = ""
    value: float | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Degrees(Result):
    """The degree of every part of a model.

    model: its class. outputs: the degree of each output; None: exactly zero. vanished: parameters that no output
    depends on in the limit, and why. parameters: the names of all that grow. orders: how many orders were carried.
    undecided_values: values that orders left out might change. cancelled: by module, leading terms that came to 0
    where a lower order was left out. explanation: all of this in sentences.
    """

    kind: ClassVar[str] = "degrees"

    source: str = ""
    model: str = ""
    input: str = "given"  # what the model read
    unknown_share: float | None = None  # of the tokens; None: not text
    fixed: tuple[str, ...] = ()  # parameters that do not grow, as names or patterns
    outputs: dict[str, Degree] = field(default_factory=dict)
    modules: tuple[ModuleDegree, ...] = ()
    dropped_terms: tuple[DroppedTerm, ...] = ()
    vanished: dict[str, Why] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    ties: tuple[TiedScores, ...] = ()
    orders: int = 1
    undecided_values: int = 0
    cancelled: dict[str, int] = field(default_factory=dict)
    findings: tuple[LimitFinding, ...] = ()
    explanation: tuple[str, ...] = ()

    def select(self, pattern: str = "", depth: int | None = None) -> "Degrees":
        """With some of the modules: those whose name matches a regular expression and has at most `depth` parts."""
        try:
            chosen = re.compile(pattern)
        except re.error as error:
            raise InputError(f"{pattern}: not a regular expression: {error}") from None
        modules = [
            row
            for row in self.modules
            if chosen.search(row.module) and (not depth or len(row.module.split(".")) <= depth)
        ]
        return replace(self, modules=tuple(modules))

    def __repr__(self) -> str:
        """One line: a model has hundreds of submodules."""
        vanished = f"{len(self.vanished):,} of {len(self.parameters):,} parameters vanish"
        return f"Degrees({visible(self.model)}; {len(self.modules):,} modules; {vanished})"


def degrees(
    model: "str | Path | nn.Module | LoadedModel",
    inputs: "Tensor | Sequence[Any] | Mapping[str, Any] | None" = None,
    *,
    texts: "str | Path | Sequence[str] | None" = None,
    orders: int | None = None,
    tolerance: float = 256,
    fixed: Sequence[str] = (),
    seed: int = 0,
    attention: str | None = None,
    model_type: str | None = None,
    as_initialized: bool = False,
    out: Path | str | None = None,
    overwrite: bool = False,
) -> Degrees:
    """The degree of every submodule's output: k, where it grows like c^k with parameters cθ.

    model: a module, or a name as `load_model` takes it.
    inputs: what the model is called with: a tensor, a list of positional arguments, or keyword arguments by name.
    texts: instead of inputs, sentences, or a file with one a line; without, sentences of the Python documentation.
    orders, tolerance, fixed: as `saturated` takes them.
    seed, attention, model_type: for a name, as `load_model` takes them. Random weights of a config.json get noise on
    parameters that are constant when they are initialized (zero biases, unit gains), unless as_initialized is set.
    out: output folder; overwrite: replace another result there.
    """
    from normgrowth.limit import degree_pass
    from normgrowth.limit.parameters.fixed import note
    from normgrowth.network.inputs.sentences import default_inputs
    from normgrowth.network.measured import name_of, naming, source_of
    from normgrowth.network.models.load import NOISE, as_loaded, generic
    from normgrowth.network.result_folder import ResultFolder

    named = isinstance(model, str | Path)
    source = name_of(model)
    request = {"model": source, "text": None if texts is None else source_of(texts), "orders": orders}
    request |= {"tolerance": tolerance, "fixed": list(fixed), "seed": seed, "attention": attention}
    request |= {"model_type": model_type, "as_initialized": as_initialized}
    folder = ResultFolder(out, "degrees", request, overwrite)
    loaded = as_loaded(model, {"seed": seed, "attention": attention, "model_type": model_type})
    notes, said, unknown = list(loaded.notes), "given", None
    if named and loaded.random and not as_initialized and (changed := generic(loaded.model, seed)):
        notes.append(
            f"{len(changed)} constant parameters (zero biases, unit gains) got noise of {NOISE}, as if trained; "
            "as_initialized (--as-initialized) leaves them"
        )
    notes += note(fixed)
    if inputs is None:
        found = default_inputs(loaded, texts, seed=seed)
        inputs, said, unknown = found.tensors, found.note, found.unknown_share
        notes += [f"input: {said}", *([found.warning] if found.warning else [])]
    elif texts is not None:
        raise InputError("give texts or inputs, not both")
    args, kwargs = _arguments(inputs)
    with naming(model):
        if named:
            _check_runs(loaded.model, args, kwargs)
        result = degree_pass.measure(
            loaded.model, args, kwargs, orders=orders, tolerance=tolerance, fixed=fixed
        )
    facts = {"source": source, "input": said, "unknown_share": unknown}
    result = replace(result, **facts, notes=tuple(notes), provenance=Provenance.now())
    folder.write(result)
    return result


def _arguments(inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return [], dict(inputs)
    return (list(inputs), {}) if isinstance(inputs, list | tuple) else ([inputs], {})


def _check_runs(model: "nn.Module", args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InputError if the model itself does not run: what then fails in the limit is a fault of normgrowth."""
    from normgrowth.network.hidden_states import evaluating, running

    first: Any = next(iter([*args, *kwargs.values()]), None)
    with evaluating(model), running(model, first.numel() if hasattr(first, "numel") else 0):
        model(*args, **kwargs)


__all__ = ["Degrees", "DroppedTerm", "LimitFinding", "ModuleDegree", "TiedScores", "degrees"]
