"""Runs PyTorch operations on the leading orders of their arguments.

C++ code, caches and output classes see ordinary tensors.
"""

from collections.abc import Callable, Collection
from fractions import Fraction
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from normgrowth.errors import InputError, UnsupportedOperation
from normgrowth.limit.dispatch.half_precision import (
    exact_argument,
    exact_constant,
    forget,
    remember,
    remembered,
    result_dtype,
)
from normgrowth.limit.dispatch.marked_storage import (
    HALVES,
    MARK,
    DegreeMark,
    fills,
    flat,
    inner_storages,
    mark_of,
    owns_its_storage,
    series_of,
    storage_like,
    torch_storage,
    wide,
)
from normgrowth.limit.dispatch.operations import RULES, TAKE_UNFINISHED, Operation
from normgrowth.limit.dispatch.partial_writes import write_part
from normgrowth.limit.dispatch.schemas import (
    BOUNDING,
    SHAPE_ONLY,
    WEIGHING,
    OpSchema,
    decomposition,
    schema_of,
)
from normgrowth.limit.dispatch.score_origins import is_attention, with_origin
from normgrowth.limit.pass_log import Context
from normgrowth.limit.power_series import Series, constant_series, nonzero, with_all_orders

SEVERAL = (list, tuple)
MOST_DEGREES = 256  # of one tensor; a product of two such tensors has 65,536 pairs of terms
VIEW_AS_DTYPE = torch.ops.aten.view.dtype
Marks = dict[int, DegreeMark]  # id of a tensor argument that grows -> its mark


class LimitMode(TorchDispatchMode):
    """The dispatch mode of a limit. `run` is the same for all passes of one Limit, which can exchange tensors."""

    def __init__(self, context: Context, run: object) -> None:
        super().__init__()
        self.context = context
        self.run = run

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # dynamo's wrapper around every operation costs more than the work on a view

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = schema_of(func)
        if schema.only_views:
            return func(*args, **kwargs) if kwargs else func(*args)
        kwargs = kwargs or {}
        if schema.draws:  # dropout draws its noise into a plain tensor and then multiplies
            raise self.context.refuse(func, self._why_no_draw())
        tensors = _tensors(args, kwargs)
        marks: Marks = {}
        storages: list[int] = []
        inner: list[int] = []  # storages of the arguments' lower terms
        # The narrowest 16-bit dtype of the arguments; whether one grows, has an exponentially small part, is infinite,
        # or depends on an undecided tie.
        half: torch.dtype | None = None
        grows = small = endless = doubt = False
        for tensor in tensors:
            if tensor.dtype in HALVES and half != torch.float16:
                half = tensor.dtype
            if (storage := torch_storage(tensor)) is None:
                continue
            storages.append(storage._cdata)
            if (mark := self._mark(storage)) is not None:
                marks[id(tensor)] = mark
                if mark.lower or mark.exact is not None:
                    inner += inner_storages(mark)
                grows = grows or not mark.zero
                small = small or mark.lost or mark.exponential is not None
                endless = endless or mark.diverges is not None
                doubt = doubt or mark.doubt
        if not marks:
            only = self.context.attention_only
            if not (only and schema.softmax and is_attention(schema.name, tensors, self.run)):
                found = self._plain(func, schema, args, kwargs)
                return with_origin(found, schema.name, tensors, self.run) if only else found
        if schema.functional not in RULES and not schema.views and (parts := decomposition(func)):
            try:
                with self:
                    return parts(*args, **kwargs)
            except UnsupportedOperation as error:
                if not error.operation.startswith("prims."):  # an operation that users know
                    raise
        if func is VIEW_AS_DTYPE:
            raise self.context.refuse(
                func, "the bits of a value that grows cannot be reinterpreted as another dtype"
            )
        if schema.views:
            return func(*args, **kwargs)
        refusal = self._diverges(marks, schema.functional, args) if endless else None
        # Whether the result may lack an exponentially small part if the rule does not compute one.
        lost = small or (grows and schema.saturates)
        doubt = doubt and schema.name not in WEIGHING
        if schema.writes:
            return self._in_place(func, schema, args, kwargs, marks, half, lost, doubt, refusal)
        dtype = result_dtype(schema, args, kwargs, tensors, half is not None) if half or kwargs else None
        result = self._ruled(func, schema.name, args, kwargs, marks, dtype, half)
        if doubt:
            result = self._doubted(schema.name, result)
        if isinstance(result, Series):
            return self.attach(_diverging(_losing(result, lost), refusal), storages, dtype, inner)
        result = _map(
            lambda value: self.attach(_diverging(_losing(value, lost), refusal), storages, dtype, inner),
            result,
        )
        return with_origin(result, schema.name, tensors, self.run) if self.context.attention_only else result

    def _in_place(
        self,
        func: Any,
        schema: OpSchema,
        args: Any,
        kwargs: Any,
        marks: Marks,
        half: torch.dtype | None,
        lost: bool,
        doubt: bool,
        refusal: Exception | None,
    ) -> Tensor:
        """Apply the rule of the out-of-place operation and write its result into the first argument."""
        packet = getattr(torch.ops.aten, schema.functional, None)
        if schema.writes != ("self",) or schema.functional == schema.name or packet is None:
            raise self.context.refuse(func, "no rule for this way of writing to a tensor")
        functional = getattr(packet, func._overloadname, packet)
        result = self._ruled(functional, schema.functional, args, kwargs, marks, args[0].dtype, half)
        if doubt:
            result = self._doubted(schema.functional, result)
        written = _losing(result if isinstance(result, Series) else constant_series(result), lost)
        self._write(args[0], _diverging(written, refusal))
        return args[0]

    def _doubted(self, name: str, result: Any) -> Any:
        """Mark a result that depends on an undecided tie and return it; count results that cannot carry a mark."""
        if isinstance(result, SEVERAL):
            return type(result)([self._doubted(name, value) for value in result])
        if isinstance(result, Series):
            return result if result.doubt else result.changed(doubt=True)
        if not (isinstance(result, Tensor) and not result.numel()) and name not in SHAPE_ONLY:
            self.context.doubtful += 1
        return result

    def _why_no_draw(self) -> str:
        if self.context.training:
            return "dropout is active; call model.eval() first"
        return (
            "draws random numbers although the model is in evaluation mode, so its output has no unique limit"
        )

    def _diverges(self, marks: Marks, name: str, args: Any) -> Exception:
        """The error for an infinite argument; raises it at once unless the operation can bound the argument."""
        found = next(mark.diverges for mark in marks.values() if mark.diverges is not None)
        divided = marks.get(id(args[0])) if name == "div" else None
        if name not in BOUNDING or (divided is not None and divided.diverges):
            raise found
        return found

    def _plain(self, func: Any, schema: OpSchema, args: Any, kwargs: Any) -> Any:
        """Run an operation on constants; a result rounded to 16 bits keeps its float32 values."""
        found = func(*args, **kwargs)
        if schema.views or not isinstance(found, Tensor):
            return found
        if schema.writes:
            forget(found)
            return found
        if schema.name == "_to_copy" and found.dtype in HALVES and args[0].dtype == torch.float32:
            return remember(found, args[0].to(found.device), self)
        if any(remembered(tensor, self) is not None for tensor in _tensors(args, kwargs)):
            args, kwargs = _map(lambda value: exact_constant(value, self), (args, kwargs))
            return remember(found, func(*args, **kwargs), self)
        return found

    def _ruled(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        marks: Marks,
        dtype: torch.dtype | None,
        half: torch.dtype | None,
    ) -> Any:
        found = RULES.get(name)
        if found is None:
            raise self.context.refuse(
                func,
                "no rule for this operation on tensors that grow; register one with "
                f'`@normgrowth.limit.rule("{name}")`',
                [None if mark.zero else mark.degree for mark in marks.values()],
            )
        unfinished = name in TAKE_UNFINISHED
        args = tuple([_lifted(value, marks, unfinished) for value in args])
        if kwargs:
            kwargs = {key: _lifted(value, marks, unfinished) for key, value in kwargs.items()}
        if (most := max((len(mark.lower) for mark in marks.values()), default=0) + 1) > MOST_DEGREES:
            raise self.context.refuse(
                func,
                f"the elements of a tensor have {most} different degrees, more than {MOST_DEGREES}: a recurrence "
                "multiplies growing values step after step. Hold its parameters fixed (fixed=), or shorten the text",
            )
        if (narrow := half or (dtype if dtype in HALVES else None)) is not None:
            args, kwargs = _map(lambda value: exact_argument(value, self, narrow), (args, kwargs))
        return found(Operation(func, self.context, dtype, (args, kwargs)), *args, **kwargs)

    def growth(self, tensor: Tensor) -> DegreeMark | None:
        """The mark of a tensor that grows; None for a constant."""
        storage = torch_storage(tensor)
        return None if storage is None else self._mark(storage)

    def _mark(self, storage: torch.UntypedStorage) -> DegreeMark | None:
        found = getattr(storage, MARK, None)
        if found is not None and found.run is not self.run:
            raise InputError(
                f"got a tensor of degree {found.degree} from another saturated(...) model, which has other parameters; "
                "pass tensor.clone() to use it as a constant"
            )
        return found

    def lift(self, value: Any) -> Any:
        """The series of a tensor that grows; anything else unchanged."""
        if not isinstance(value, Tensor) or (mark := self.growth(value)) is None:
            return value
        return series_of(value, mark)

    def grow(self, tensor: Tensor, degree: Fraction, sources: int) -> None:
        """Give the whole storage of a tensor a degree."""
        whole = tensor
        if not owns_its_storage(tensor):
            whole = flat(tensor.untyped_storage(), tensor, tensor.dtype)
        _hang(tensor, DegreeMark(self.run, degree, sources, [], None, zero=not nonzero(whole)))

    def attach(
        self,
        value: Any,
        taken: Collection[int] = (),
        dtype: torch.dtype | None = None,
        inner: Collection[int] = (),
    ) -> Any:
        """A new tensor for a series, in 16 bits if `dtype` has 16.

        taken: storages of the operation's arguments; inner: storages of their lower terms. The network may write to the
        new tensor, so it gets none of these.
        """
        if not isinstance(value, Series):
            if dtype in HALVES and isinstance(value, Tensor) and value.is_floating_point():
                return value.to(dtype)
            return value
        top, exact = value.top.value, None
        if value.unfinished is not None and not top.is_contiguous():
            value = with_all_orders(value)
        storage = top.untyped_storage()
        if (cdata := storage._cdata) in taken or cdata in inner or not fills(top, storage):
            top = top.clone(memory_format=torch.contiguous_format)
            storage = top.untyped_storage()
        if dtype in HALVES and top.dtype == torch.float32:
            top = top.to(dtype)
            exact = storage_like(value.top.value, top)
            storage = top.untyped_storage()
        setattr(storage, MARK, mark_of(value, top, exact, self.run, taken or None))
        return top

    def _write(self, tensor: Tensor, value: Series) -> None:
        """Write a series into a tensor, which may be a part of a storage."""
        if (
            value.unfinished is None
        ):  # an unfinished series was made from this tensor and already has its layout
            value = value.move(lambda v: v.to(wide(tensor.dtype)).expand(tensor.shape))
        if not owns_its_storage(tensor):
            _hang(tensor, write_part(tensor, value, self.growth(tensor), self.run))
            return
        exact = storage_like(value.top.value, tensor) if tensor.dtype in HALVES else None
        mark = mark_of(value, tensor, exact, self.run)
        tensor.copy_(value.top.value)
        _hang(tensor, mark)


def _lifted(value: Any, marks: Marks, unfinished: bool) -> Any:
    """An argument for a rule: tensors that grow become series."""
    mark = marks.get(id(value))
    if mark is not None:
        return series_of(value, mark, unfinished)
    if isinstance(value, SEVERAL):
        return type(value)([_lifted(item, marks, unfinished) for item in value])
    return value


def _hang(tensor: Tensor, mark: DegreeMark) -> None:
    setattr(tensor.untyped_storage(), MARK, mark)


def _diverging(value: Any, endless: Exception | None) -> Any:
    """Attach the error to a result that is still infinite somewhere; raise it if a positive power of c is infinite."""
    if not isinstance(value, Series) or (endless is None and value.diverges is None):
        return value
    refusal = endless or value.diverges
    assert refusal is not None
    infinite = reduce(torch.logical_or, (torch.isposinf(term.value) for term in value.terms))
    if not bool(infinite.any()):
        return value.changed(diverges=None)
    if any(term.degree > 0 and bool((infinite & (term.value != 0)).any()) for term in value.terms):
        raise refusal  # a rule would take this power of c for the leading order
    return value.changed(diverges=refusal)


def _losing(value: Any, lost: bool) -> Any:
    if not lost or not isinstance(value, Series) or value.exponential is not None or value.lost:
        return value
    return value if value.zero and value.exact_zeros else value.changed(lost=True)


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for values in (args, kwargs.values()) if kwargs else (args,):
        for value in values:
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, SEVERAL):
                found += _tensors(value, {})
    return found


def _map(f: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, SEVERAL):
        return type(value)(_map(f, item) for item in value)
    if isinstance(value, dict):
        return {key: _map(f, item) for key, item in value.items()}
    return f(value)
