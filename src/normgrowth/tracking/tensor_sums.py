"""Sums of live tensors: the columns of `normgrowth.moments.kernel`, from a model instead of a file.

torch computes the sums in float64 on the tensors' device, where they stay until all are done. For many values on a CPU,
the compiled kernel of `trace` takes 0.26 ns of CPU time per value with one reference, torch at best 1.6 ns: 0.03 and
0.18 s for 110 million parameters. Small models do not use the kernel, because it takes 90 MB of memory.

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
    than summing them. piece: values converted to float64 at once; on a CPU they fit into its cache. looks: whether
    values that are not finite are looked for only if a sum is not finite, which a GPU would have to wait for."""

    small: int
    piece: int
    looks: bool = True


Lists = Sequence[Sequence[Tensor]]
KERNEL_VALUES = 2**24  # from this many values on (64 MB), the compiled kernel is used on a CPU
THREADED = 4 * CHUNK  # from this many values on, several threads are faster
SIZES = {"cpu": Sizes(small=2**11, piece=2**17)}
OTHER_SIZES = Sizes(small=2**16, piece=2**24, looks=False)


def is_dtensor(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, Parameter):
        return False  # the common case, without importing DTensor
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The local values of this process, flat; a view if possible."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
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
    tensor = tensor.resolve_neg()
    return (tensor if tensor.dim() == 1 else tensor.reshape(-1)).contiguous()


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


def apart_over_ranks(columns: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """By how much Σθ² of each plain tensor differs between ranks, relative to the largest; 0 for sharded tensors.

    Plain tensors are replicas of each other, whose gradients DDP averages. All ranks take part.
    """
    apart = torch.zeros(len(columns), dtype=columns.dtype, device=columns.device)
    plain = [i for i, parameter in enumerate(parameters) if not is_dtensor(parameter)]
    if not is_parallel() or not plain:
        return apart
    squares = columns[plain, SQUARE]
    # The largest of −Σθ² is the smallest Σθ²; a rank without a value (out of memory) is ignored.
    ends = torch.stack([squares, -squares]).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    on_gpu = torch.distributed.get_backend() == "nccl" and ends.device.type == "cpu"
    ends = ends.cuda() if on_gpu else ends
    torch.distributed.all_reduce(ends, torch.distributed.ReduceOp.MAX)
    highest, lowest = ends[0], -ends[1]
    apart[plain] = ((highest - lowest) / highest).nan_to_num(nan=0.0).to(apart.device)
    return apart


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


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """Σx² of flat local tensors: the first column of `tensor_sums`, in less time for small models on a CPU."""
    count = sum(tensor.numel() for tensor in tensors)
    if count >= KERNEL_VALUES or not all(_sizes(tensor).looks for tensor in tensors):
        return tensor_sums(tensors)[:, SQUARE]
    pieces = [_pieces(tensor) for tensor in tensors]
    longest = max((len(piece) for parts in pieces for piece in parts), default=0)
    buffer = torch.empty(longest, dtype=torch.float64)
    found: list[float] = []
    for parts in pieces:
        copies = (buffer[: len(piece)].copy_(piece) for piece in parts)
        found.append(sum(torch.dot(copy, copy).item() for copy in copies))
    return torch.tensor(found, dtype=torch.float64)


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
    small, large = _by_size(tensors)
    if large:
        of_large = _large_on_cpu if _sizes(tensors[0]).looks else _large_on_device
        columns[large] = of_large([[x[i] for i in large] for x in lists])
    for bucket in _buckets(small, [tensor.numel() for tensor in tensors]):
        columns[bucket] = _sums_of_small([[x[i] for i in bucket] for x in lists])
    if _sizes(tensors[0]).looks:
        for i in torch.nonzero(~columns[:, LARGEST].isfinite()).flatten().tolist():
            columns[i, LARGEST], columns[i, NONFINITE] = _finite_extent(tensors[i])
    return columns


def plain_sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of the values of each flat tensor, in float64, on the device of the first tensor."""
    doubles = all(supports_float64(tensor.device.type) for tensor in tensors)
    here = [tensor.to(tensors[0].device) if doubles else tensor.cpu() for tensor in tensors]
    sums = torch.zeros(len(here), dtype=torch.float64, device=here[0].device)
    small, large = _by_size(here)
    if large:
        sums[large] = torch.stack([here[i].sum(dtype=torch.float64) for i in large])
    for bucket in _buckets(small, [tensor.numel() for tensor in here]):
        values = torch.cat([here[i] for i in bucket]).double()
        sums[bucket] = torch.segment_reduce(values, "sum", lengths=_lengths([here[i] for i in bucket]))
    return sums


def _by_size(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """The indices of small and of large tensors."""
    small: list[int] = []
    large: list[int] = []
    for i, tensor in enumerate(tensors):
        (small if tensor.numel() <= _sizes(tensor).small else large).append(i)
    return small, large


def _large_on_cpu(lists: Lists) -> Tensor:
    """The rows of large tensors, in buffers that stay in the cache; LARGEST is not finite where some value is not."""
    columns = np.zeros((len(lists[0]), 3 * len(lists)))
    longest = min(max(tensor.numel() for tensor in lists[0]), _sizes(lists[0][0]).piece)
    buffers = torch.empty(2, longest, dtype=torch.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite values
        for row, tensors in zip(columns, zip(*lists, strict=True), strict=True):
            for b, *references in zip(*(_pieces(tensor) for tensor in tensors), strict=True):
                x, delta = buffers if len(b) == longest else buffers[:, : len(b)]
                low, high = torch.aminmax(b)
                row[LARGEST] = np.maximum(row[LARGEST], max(-low.item(), high.item()))  # NaN remains
                row[SQUARE] += torch.dot(x.copy_(b), x).item()
                for i, r in enumerate(references):
                    torch.sub(delta.copy_(b), x.copy_(r), out=delta)
                    products = torch.dot(x, x), torch.dot(x, delta), torch.dot(delta, delta)
                    row[3 * i + REF_SQUARE :][:3] += [product.item() for product in products]
    return torch.from_numpy(columns)


def _large_on_device(lists: Lists) -> Tensor:
    """The rows of large tensors."""
    rows, counts = list[Tensor](), list[int]()
    for tensors in zip(*lists, strict=True):
        before = len(rows)
        for pieces in zip(*(_pieces(tensor) for tensor in tensors), strict=True):
            b, *references = (piece.double() for piece in pieces)
            row = [b @ b, *_finite(pieces[0])]
            for r in references:
                delta = b - r
                row += [r @ r, r @ delta, delta @ delta]
            rows += row
        counts.append((len(rows) - before) // (3 * len(lists)))
    columns = torch.stack(rows).reshape(-1, 3 * len(lists))
    if len(columns) == len(counts):
        return columns
    lengths = torch.tensor(counts, device=columns.device)
    sums = torch.segment_reduce(columns, "sum", lengths=lengths)
    sums[:, LARGEST] = torch.segment_reduce(columns[:, LARGEST].contiguous(), "max", lengths=lengths)
    return sums


def _finite(piece: Tensor) -> tuple[Tensor, Tensor]:
    """The largest finite magnitude, and the number of values that are not finite, without waiting for the device."""
    size = piece.abs()
    finite = size < torch.inf
    return size.where(finite, 0).amax().double(), (piece.numel() - finite.sum()).double()


def _sums_of_small(lists: Lists) -> Tensor:
    """The rows of small tensors, which are concatenated; LARGEST is as for large tensors."""
    b, *references = (torch.cat(list(tensors)).double() for tensors in lists)
    size, bad = b.abs(), torch.zeros_like(b)
    if not _sizes(lists[0][0]).looks:
        finite = size < torch.inf
        size, bad = size.where(finite, 0.0), (~finite).double()
    terms = [b * b, torch.zeros_like(b), bad]
    for r in references:
        delta = b - r
        terms += [r * r, r * delta, delta * delta]
    lengths = _lengths(lists[0])
    rows = torch.segment_reduce(torch.stack(terms, 1), "sum", lengths=lengths)
    rows[:, LARGEST] = torch.segment_reduce(size, "max", lengths=lengths, initial=0.0)
    return rows


def _lengths(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([tensor.numel() for tensor in tensors], device=tensors[0].device)


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
