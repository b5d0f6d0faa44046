"""Sums of live tensors: the columns of `normgrowth.moments.kernel`, from a model instead of a file.

torch computes the sums in float64 on the tensors' device, where they stay until all are done. For many values on a CPU,
the compiled kernel of `trace` is five times as fast; small models do not use it, because it takes 100 MB of memory.

Under sharding, each process sums its local values. The sums are reduced once over every mesh dimension on which a
tensor is not replicated, which gives the sums of the whole tensor. They are not reduced over replicated dimensions:
that would count the same values again and make norms wrong by the square root of the number of ranks.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from normgrowth import engine
from normgrowth.errors import InputError, RanksDiffer
from normgrowth.moments.moments import CHUNK
from normgrowth.trace.by_step import added_rows, sum_at
from normgrowth.tracking.distributed import is_parallel, world_size

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

SQUARE, LARGEST, NONFINITE = 0, 1, 2  # Σθ², the largest finite |θ|, the number of values that are not finite
REF_SQUARE, REF_DOT = 3, 4  # for the first reference r, with δ = θ − r: Σr², Σrδ; then Σδ²
WORDS = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
BUCKET = 2**20  # values per bucket


class Sizes(NamedTuple):
    """small: tensors with at most this many values are summed in buckets, because launching an operation costs more
    than summing them. piece: values converted to float64 at once; on a CPU they fit into its cache."""

    small: int
    piece: int


Lists = Sequence[Sequence[Tensor]]
KERNEL_VALUES = 2**24  # from this many values on (64 MB), the compiled kernel is used on a CPU
THREADED = 4 * CHUNK  # from this many values on, several threads are faster
SIZES = {"cpu": Sizes(small=2**11, piece=2**17)}
OTHER_SIZES = Sizes(small=2**16, piece=2**24)


def is_dtensor(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, Parameter):
        return False  # the common case, without importing DTensor
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The local values of this process, flat; a view if possible."""
    tensor = tensor.detach()
    if is_dtensor(tensor):
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        tensor = _as_distributed(tensor).to_local()
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.wait()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())  # a gradient is often conjugated lazily
    # A slice of a matrix may be flat but not contiguous, and a negation may be lazy.
    return tensor.resolve_neg().reshape(-1).contiguous()


def whole(tensor: Tensor) -> Tensor:
    """All values of a tensor, gathered from the ranks where it is spread over them."""
    tensor = tensor.detach()
    return _as_distributed(tensor).full_tensor() if is_dtensor(tensor) else tensor


def local_gradient(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The values of a gradient for this process's shard of the parameter.

    Tensor parallelism leaves some gradients as partial sums, one per rank. The norm of a sum does not follow from the
    norms of its terms, so partial sums are added first, as the optimizer does.
    """
    if is_dtensor(gradient) and is_dtensor(parameter):
        part, whole = _as_distributed(gradient), _as_distributed(parameter)
        if part.placements != whole.placements:
            gradient = part.redistribute(placements=whole.placements)
    return local(gradient)


def sharded_over(parameter: Tensor) -> "tuple[Any, tuple[int, ...]] | None":
    """The mesh and its dimensions over which the parameter's sums must be added; None if there are none.

    The test is whether a placement is not Replicate, rather than whether it is Shard: FSDP2 on top of tensor
    parallelism creates placements that are neither.
    """
    if not is_dtensor(parameter):
        return None
    from torch.distributed.tensor import Partial, Replicate

    tensor = _as_distributed(parameter)
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise InputError(
            f"a parameter of shape {list(tensor.shape)} is a partial sum on each rank {tensor.placements}; "
            "it can be measured only after these are added"
        )
    mesh = tensor.device_mesh
    dims = tuple(
        dim
        for dim, placement in enumerate(tensor.placements)
        if not isinstance(placement, Replicate) and mesh.size(dim) > 1
    )
    return (mesh, dims) if dims else None


def add_over_ranks(columns: Tensor, parameters: Sequence[Tensor]) -> None:
    """Reduce the sums of local shards to the sums of whole tensors, in place, with the same result on every rank."""
    items: dict[Any, list[int]] = {}
    for i, parameter in enumerate(parameters):
        if (where := sharded_over(parameter)) is not None:
            items.setdefault(where, []).append(i)
    for (mesh, dims), rows in items.items():
        part = columns[rows].to(mesh.device_type)
        largest = part[:, LARGEST].clone()
        for dim in dims:
            group = mesh.get_group(dim)
            torch.distributed.all_reduce(part, group=group)
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, group=group)
        part[:, LARGEST] = largest
        columns[rows] = part.to(columns.device)


@cache
def supports_float64(device_type: str) -> bool:
    """Whether a device type supports float64; Apple's mps does not."""
    if device_type == "cpu":
        return True
    try:
        torch.zeros(1, dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError, NotImplementedError):
        return False
    return True


def to_double(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if the device does not support it."""
    return tensor.double() if supports_float64(tensor.device.type) else tensor.cpu().double()


def check_replicated(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise RanksDiffer on every rank if plain tensors differ between ranks.

    Megatron's tensor parallelism, expert parallelism and pipelines have parts of a model in plain tensors, without
    metadata on how they fit together. Then the part of rank 0 would be recorded as the whole model.
    """
    if not is_parallel():
        return
    plain = [(name, t) for name, t in zip(names, tensors, strict=True) if not is_dtensor(t)]
    own: dict[str, tuple[tuple[int, ...], float]] = {}
    if plain:
        squares = tensor_sums([local(t) for _, t in plain])[:, SQUARE].tolist()
        own = {name: (tuple(t.shape), s) for (name, t), s in zip(plain, squares, strict=True)}
    told: list[Any] = [None] * world_size()
    torch.distributed.all_gather_object(told, own)
    for rank, theirs in enumerate(told):
        for name in {**told[0], **theirs}:
            ours, other = told[0].get(name), theirs.get(name)
            if ours is None or other is None or ours[0] != other[0]:
                raise RanksDiffer(name, rank)
            if not np.isclose(ours[1], other[1], rtol=1e-9, atol=0.0, equal_nan=True):
                raise RanksDiffer(name, rank)


def tensor_sums(tensors: Sequence[Tensor], *references: Sequence[Tensor]) -> Tensor:
    """The kernel's columns of flat local tensors, one row each: three for the tensor, three for each reference."""
    lists: Lists = [tensors, *references]
    devices: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        devices.setdefault(tensor.device, []).append(i)
    parts = [_on_device(device, [[x[i] for i in rows] for x in lists]) for device, rows in devices.items()]
    if len(parts) == 1:
        return parts[0]
    whole = parts[0].new_zeros(len(tensors), 3 * len(lists))
    for rows, part in zip(devices.values(), parts, strict=True):
        whole[rows] = part.to(whole.device)
    return whole


def _on_device(device: torch.device, lists: Lists) -> Tensor:
    if not supports_float64(device.type):  # one tensor at a time, to limit the number of copies
        return torch.cat([by_torch([[t.cpu()] for t in row]) for row in zip(*lists, strict=True)])
    if device.type == "cpu" and sum(tensor.numel() for tensor in lists[0]) >= KERNEL_VALUES:
        return torch.from_numpy(by_kernel(lists))
    return by_torch(lists)


def by_torch(lists: Lists) -> Tensor:
    """The sums by torch: a few operations per bucket of small tensors and per piece of a large one; no transfer."""
    tensors, width = lists[0], 3 * len(lists)
    columns = torch.zeros(len(tensors), width, dtype=torch.float64, device=tensors[0].device)
    small: list[int] = []
    large: list[int] = []
    for i, tensor in enumerate(tensors):
        (small if tensor.numel() <= _sizes(tensor).small else large).append(i)
    if large:
        sums = [value for i in large for value in _sums_of_large([x[i] for x in lists])]
        columns[large] = torch.stack(sums).reshape(len(large), width)
    for bucket in _buckets(small, [tensor.numel() for tensor in tensors]):
        columns[bucket] = _sums_of_small([[x[i] for i in bucket] for x in lists])
    for i in torch.nonzero(~columns[:, LARGEST].isfinite()).flatten().tolist():
        columns[i, LARGEST], columns[i, NONFINITE] = _finite_extent(tensors[i])
    return columns


def _sums_of_large(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The columns of large tensors; LARGEST is not finite if some value is not, and NONFINITE is 0."""
    rows = []
    for pieces in zip(*(_pieces(tensor) for tensor in tensors), strict=True):
        low, high = torch.aminmax(pieces[0])
        b, *references = (piece.double() for piece in pieces)
        row = [b @ b, torch.maximum(-low, high).double(), torch.zeros((), dtype=b.dtype, device=b.device)]
        for r in references:
            delta = b - r
            row += [r @ r, r @ delta, delta @ delta]
        rows.append(row)
    if len(rows) == 1:
        return rows[0]
    columns = torch.stack([value for row in rows for value in row]).reshape(len(rows), -1)
    return [column.amax() if i == LARGEST else column.sum() for i, column in enumerate(columns.unbind(1))]


def _sums_of_small(lists: Lists) -> Tensor:
    """The rows of small tensors, which are concatenated; LARGEST is not finite if some value is not."""
    b, *references = (torch.cat(list(tensors)).double() for tensors in lists)
    terms = [b * b, torch.zeros_like(b), torch.zeros_like(b)]
    for r in references:
        delta = b - r
        terms += [r * r, r * delta, delta * delta]
    lengths = torch.tensor([tensor.numel() for tensor in lists[0]], device=b.device)
    rows = torch.segment_reduce(torch.stack(terms, 1), "sum", lengths=lengths)
    rows[:, LARGEST] = torch.segment_reduce(b.abs(), "max", lengths=lengths, initial=0.0)
    return rows


def _buckets(indices: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    bucket: list[int] = []
    filled = 0
    for i in indices:
        if bucket and filled + sizes[i] > BUCKET:
            yield bucket
            bucket, filled = [], 0
        bucket.append(i)
        filled += sizes[i]
    if bucket:
        yield bucket


def _finite_extent(tensor: Tensor) -> tuple[float, float]:
    """The largest finite magnitude, and the number of values that are not finite."""
    largest = bad = 0.0
    for piece in _pieces(tensor):
        finite = piece.isfinite()
        bad += float((~finite).sum())
        largest = max(largest, float(piece.abs().where(finite, 0.0).max()))
    return largest, bad


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    size = _sizes(tensor).piece
    return tensor.split(size) if tensor.numel() > size else (tensor,)


def _sizes(tensor: Tensor) -> Sizes:
    return SIZES.get(tensor.device.type, OTHER_SIZES)


def by_kernel(lists: Lists) -> NDArray[np.float64]:
    """The sums by the compiled kernel, for all tensors of a dtype at once, with long tensors in chunks."""
    count = len(lists[0])
    same: dict[str, list[int]] = {}
    rows: list[list[Tensor]] = []  # keeps converted tensors alive until they are summed
    for i, row in enumerate(zip(*lists, strict=True)):
        word = WORDS.get(row[0].dtype, "")
        if not word or type(row[0]) is not Tensor or any(t.dtype != row[0].dtype for t in row):
            row, word = [t.double() for t in row], "F64"
        rows.append(list(row))
        same.setdefault(word, []).append(i)
    columns = np.zeros((count, 3 * len(lists)))
    for word, items in same.items():
        numel = np.array([rows[i][0].numel() for i in items], np.int64)
        addresses = np.array([[t.data_ptr() for t in rows[i]] for i in items], np.int64)
        chunks = np.maximum(-(-numel // CHUNK), 1)
        item = np.repeat(np.arange(len(items)), chunks)
        start = (np.arange(len(item)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * CHUNK
        counts = np.minimum(numel[item] - start, CHUNK)
        table = addresses[item] + (start * rows[items[0]][0].element_size())[:, None]
        columns[items] = added_rows(_in_threads(word, table, counts), item, len(items))
    return columns


def _in_threads(word: str, table: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    out = np.zeros((len(counts), 3 * table.shape[1]))
    threads = torch.get_num_threads()
    if threads == 1 or counts.sum() < THREADED:
        sum_at(word, table, counts, out)
        return out

    def part(rows: NDArray[np.intp]) -> None:
        mine = np.zeros((len(rows), out.shape[1]))
        sum_at(word, table[rows], counts[rows], mine)
        out[rows] = mine

    for _ in engine.map(part, np.array_split(np.arange(len(counts)), 4 * threads), workers=threads):
        pass
    return out


def _as_distributed(tensor: Tensor) -> "DTensor":
    return tensor  # pyright: ignore[reportReturnType]
