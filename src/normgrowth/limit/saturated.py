"""The saturated network of a model: lim c^(-k) f(x; cθ) as c goes to infinity, computed in one forward pass."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import normgrowth.limit.rule_files  # noqa: F401 (registers the rules)
from normgrowth.errors import InputError
from normgrowth.limit.dispatch import HALVES, MARK, LimitMode
from normgrowth.limit.dispatch.score_origins import known_parameters
from normgrowth.limit.forward_pass.compiled import run_eagerly, unwrapped
from normgrowth.limit.forward_pass.kernels import no_cached_weights, unfused_kernels
from normgrowth.limit.forward_pass.module_hooks import watched
from normgrowth.limit.forward_pass.saved_state import SavedState
from normgrowth.limit.growing_parameters import ParameterLayout, check_fixed, first_names, own_storages
from normgrowth.limit.growing_parameters.layout import NamedModules
from normgrowth.limit.limit_findings import LeavingTorch, PassFinding
from normgrowth.limit.pass_log import Context, Sum, Tie
from normgrowth.limit.power_series import Series, Term, nonzero
from normgrowth.text import by_run, html_table

MORE_ORDERS = 3  # orders of a second pass, if the leading order leaves something undecided


@dataclass(frozen=True)
class Output:
    """The output of a submodule: one row of the table of degrees."""

    module: str
    kind: str  # its class
    degree: Fraction | None  # None: exactly zero
    lower: tuple[Fraction, ...]  # lower degrees in the output
    sources: int


@dataclass
class Limit:
    """A model in the limit. Call it like the model; it returns the same type of output.

    Attributes after a call, from the last call: `degrees` (module -> degree of its output), `ties`, `sums` (sums of
    terms of unequal degree), `vanished` (parameters that the output no longer depends on), `cancelled` (leading terms
    that cancel to 0 although a lower order was omitted), `doubtful` (number of values that omitted orders might change,
    and of NaN in the output), `findings` (finite masks; values converted out of torch, which only the first call
    detects). The output of a call can be passed to the next call (a KV cache) and keeps its degree. Another Limit
    raises an error for it.
    """

    model: nn.Module
    orders: int | None = None  # None: as many as ties require
    tolerance: float = 256
    attention_only: bool = False
    fixed: Sequence[str] = ()  # names or patterns of parameters that do not grow
    outputs: list[Output] = field(default_factory=list)
    ties: list[Tie] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    cancelled: dict[str, int] = field(default_factory=dict)
    vanished: list[str] = field(default_factory=list)
    findings: list[PassFinding] = field(default_factory=list)
    output_degrees: Any = None
    used_orders: int = 1
    doubtful: int = 0
    _called: bool = field(default=False, repr=False)
    _layout: ParameterLayout | None = field(default=None, repr=False)
    _run_mark: object = field(default_factory=object, repr=False)  # marks every tensor that a call creates
    _needed: tuple[int, bool] = field(
        default=(1, False), repr=False
    )  # orders and exponentials of the last call

    @property
    def degrees(self) -> dict[str, Fraction | None]:
        """The degree of every submodule's output, from its last run."""
        return {output.module: output.degree for output in self.outputs}

    @property
    def undecided(self) -> int:
        """The number of softmax rows with a tie that an omitted order might break."""
        return sum(tie.undecided for tie in self.ties)

    def __repr__(self) -> str:
        """One line: the repr of the model would fill a page, and the ties of the last call several."""
        called = f"{len(self.degrees):,} modules" if self.outputs else "not called yet"
        return f"Limit({type(self.model).__name__}; {called})"

    def _repr_html_(self) -> str:
        runs: dict[str, list[Output]] = {}
        for output in self.outputs:
            runs.setdefault(output.module, []).append(output)
        rows = [
            (name or "(the model)", outputs[-1].kind, by_run([output.degree for output in outputs]))
            for name, outputs in runs.items()
        ]
        found = [("vanished parameters", len(self.vanished)), ("doubtful values", self.doubtful)]
        about = found if rows else [("degrees", "known after a call")]
        degrees = html_table(("module", "class", "degree"), rows) if rows else ""
        return html_table(("limit of", type(self.model).__name__), about) + degrees

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model in the limit with as few orders as necessary, starting with those of the last call."""
        orders, exponentials = self.orders or self._needed[0], self._needed[1]
        last = self.orders is not None or orders >= MORE_ORDERS
        modules = list(self.model.named_modules())
        saved = (
            None if last and exponentials else SavedState((args, kwargs), [module for _, module in modules])
        )
        while True:
            context = Context(orders, self.tolerance, self.attention_only, exponentials)
            context.training = any(module.training for _, module in modules)
            result = self._run(context, modules, args, kwargs)
            last = self.orders is not None or orders >= MORE_ORDERS
            more = not last and self.doubtful > context.unranked
            unranked = context.unranked > 0 and not exponentials
            if saved is None or not (more or unranked):
                self._needed, self._called = (orders, exponentials), True
                return result
            orders = MORE_ORDERS if more else orders
            exponentials = exponentials or unranked
            saved.restore()

    def _run(self, context: Context, modules: NamedModules, args: Any, kwargs: Any) -> Any:
        mode = LimitMode(context, self._run_mark)
        self.outputs = []
        with ExitStack() as stack:
            stack.enter_context(
                torch.inference_mode(False)
            )  # in inference mode, operations are not decomposed
            stack.enter_context(torch.no_grad())
            stack.enter_context(run_eagerly())
            parameters = []
            if self.attention_only:
                stack.enter_context(known_parameters(self.model.parameters(), self._run_mark))
            else:
                if self._layout is None or not self._layout.holds(modules):
                    self._layout = ParameterLayout(modules)
                parameters = first_names(self._layout.groups, check_fixed(self.model, self.fixed))
                stack.enter_context(own_storages(self._layout))
                context.parameters = [name for name, _ in parameters]
            stack.enter_context(no_cached_weights())
            stack.enter_context(unfused_kernels(modules))
            stack.enter_context(_growing(mode, parameters))
            stack.enter_context(watched(modules, lambda *seen: self._saw(mode, *seen), context))
            if not self._called:
                stack.enter_context(LeavingTorch(lambda *left: _left_torch(mode, *left)))
            with mode:
                result = self.model(*args, **kwargs)
            leaves, structure = pytree.tree_flatten(result)
            found = [mode.lift(leaf) for leaf in leaves]
            degrees = [_degree_of_any(x) if isinstance(x, Series | Tensor) else x for x in found]
            try:
                self.output_degrees = pytree.tree_unflatten(degrees, structure)
            except (AttributeError, TypeError):  # a container that accepts only tensors: PackedSequence
                self.output_degrees = [
                    degree for x, degree in zip(found, degrees, strict=True) if isinstance(x, Series | Tensor)
                ]
            self.ties, self.sums, self.used_orders = context.ties, context.sums, context.orders
            self.cancelled = dict(context.cancelled)
            self.doubtful = context.doubtful + context.unranked + sum(self.cancelled.values())
            alive = 0
            for leaf in found:
                if isinstance(leaf, Series):
                    if leaf.diverges is not None:
                        raise leaf.diverges
                    alive |= _leading(leaf).sources if not leaf.zero else 0
                    self.doubtful += leaf.doubt + int(_leading(leaf).value.isnan().sum())
            self.vanished = [
                name
                for bit, (name, _) in enumerate(parameters)
                if not alive >> bit & 1 and not self.attention_only
            ]
            plain = [
                _plain(mode, leaf, x) if isinstance(x, Series) else leaf
                for leaf, x in zip(leaves, found, strict=True)
            ]
            self.findings = list(context.findings)
            same = all(new is old for new, old in zip(plain, leaves, strict=True))
            return result if same else pytree.tree_unflatten(plain, structure)

    def _saw(self, mode: LimitMode, name: str, module: nn.Module, args: Any, result: Any) -> None:
        leaves = [result] if isinstance(result, Tensor) else pytree.tree_leaves(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        kind = type(module).__name__
        for tensor in tensors:
            growth = mode.growth(tensor)
            if growth is not None and not growth.lower and growth.unfinished is None:
                degree = None if growth.zero else growth.degree
                self.outputs.append(Output(name, kind, degree, (), growth.sources))
                return
            if growth is not None or tensor.is_floating_point():
                with torch._C._DisableTorchDispatch():  # these operations are not part of the network
                    self.outputs.append(_output(name, kind, mode.lift(tensor)))
                if all(mode.growth(one) is None for one in tensors):
                    _find_constant_output(mode, name, module, args)
                return


def _output(name: str, kind: str, value: Series | Tensor) -> Output:
    if not isinstance(value, Series):
        return Output(name, kind, Fraction(0) if nonzero(value) else None, (), 0)
    leading = _leading(value)
    lower = tuple(term.degree for term in value.terms if term.degree < leading.degree)
    return Output(name, kind, degree_of(value), lower, leading.sources)


def _find_constant_output(mode: LimitMode, name: str, module: nn.Module, args: Any) -> None:
    """Record a module with growing parameters and input but a constant output: its kernel may bypass the dispatcher."""
    if not any(mode.growth(parameter) for parameter in module.parameters(recurse=False)):
        return
    marks = [mode.growth(leaf) for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    degree = max((mark.degree for mark in marks if mark is not None and not mark.zero), default=Fraction(0))
    if degree > 0:
        mode.context.find(PassFinding("constant_output", name, degree, type(module).__name__))


def _left_torch(mode: LimitMode, tensor: Tensor, method: str) -> None:
    mark = mode.growth(tensor)
    if mark is not None and mark.degree != 0 and not mark.zero:
        mode.context.find(PassFinding("left_torch", mode.context.module, mark.degree, method))


def saturated(
    model: nn.Module,
    *,
    orders: int | None = None,
    tolerance: float = 256,
    attention_only: bool = False,
    fixed: Sequence[str] = (),
) -> Limit:
    """The saturated network of a model: `saturated(model)(**inputs)` returns lim c^(-k) f(x; cθ).

    orders: number of orders to compute, including the leading one; by default as many as necessary to break ties that
    matter, at most three. tolerance: scores tie if they differ by at most this many units of rounding of the largest
    score, and if their keys tie for every query.
    attention_only: keep the weights unchanged and only make attention hard: softmax of products of two activations.
    fixed: parameters that do not grow, as names or patterns (`["logit_scale", "*.A_log"]`), for example parameters in
    an exponential, which would grow faster than any power of c.

    >>> limit = ng.saturated(model)
    >>> logits = limit(**inputs).logits
    >>> limit.degrees["transformer.h.0"]
    Fraction(3, 1)
    """
    if not isinstance(model, nn.Module):
        raise InputError(
            f"saturated needs a module, got {model!r}; load a model by its name with load_model(...).model"
        )
    model = unwrapped(model)
    check_fixed(model, fixed)
    return Limit(model, orders, tolerance, attention_only, fixed)


def degree_of(x: Series) -> Fraction | None:
    """The degree of a tensor: the degree of its highest term that is not all zero."""
    return None if x.zero else _leading(x).degree


def _degree_of_any(x: Series | Tensor) -> Fraction | None:
    if isinstance(x, Series):
        return degree_of(x)
    return Fraction(0) if nonzero(x) else None


def _leading(x: Series) -> Term:
    return next((term for term in x.terms[:-1] if nonzero(term.value)), x.terms[-1])


def _plain(mode: LimitMode, tensor: Tensor, found: Series) -> Tensor:
    """The leading coefficients: the tensor itself, unless it is a view without values of its storage's degree."""
    leading = _leading(found)
    if tensor.dtype in HALVES and not found.zero and tensor.numel():
        largest = float(leading.value.abs().max())
        if not torch.finfo(tensor.dtype).tiny <= largest <= torch.finfo(tensor.dtype).max:
            dtype = str(tensor.dtype).removeprefix("torch.")
            mode.context.find(PassFinding("out_of_range", "", leading.degree, dtype, largest))
    if leading is found.top:
        return tensor
    lower = found.changed(terms=found.terms[found.terms.index(leading) :])
    return mode.attach(lower.move(torch.clone), dtype=tensor.dtype)


@contextmanager
def _growing(mode: LimitMode, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[None]:
    """Temporarily give parameters degree 1; restores earlier marks, so that calls can be nested."""
    before: list[tuple[torch.UntypedStorage, Any]] = []
    one = Fraction(1)
    try:
        for bit, (_, parameter) in enumerate(parameters):
            storage = parameter.untyped_storage()
            before.append((storage, getattr(storage, MARK, None)))
            mode.grow(parameter, one, 1 << bit)
        yield
    finally:
        for storage, growth in before:
            if growth is not None:
                setattr(storage, MARK, growth)
            elif hasattr(storage, MARK):
                delattr(storage, MARK)
