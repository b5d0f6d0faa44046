"""Sums of live tensors: the columns of `normgrowth.moments.kernel`, from a model instead of a file.

On a CPU the kernel itself reads the tensors where they lie, so that the numbers are those of `trace`, to
the bit. On other devices torch sums in float64, and the results stay on the device until all are there.

Under sharding each process sums what it holds. Sums add: reduced once over every dimension of the mesh on
which a tensor is not replicated, they are those of the whole tensor. Replicated dimensions are left alone:
reducing there would count the same values again, which is how norms get wrong by the root of the ranks.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

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

LARGEST = 1  # the one column that does not add
WORDS = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DEVICE_CHUNK = 16 * CHUNK  # what float64 copies of a piece may take elsewhere than on a CPU: 128 MB each
THREADED = 4 * CHUNK  # values from which on several threads pay


def is_distributed(tensor: Tensor) -> bool:
    if type(tensor) in (Tensor, Parameter):
        return False  # the common case, without loading the code of the other one
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The values that this process holds, flat; a view where that can be."""
    tensor = tensor.detach()
    if is_distributed(tensor):
        from torch.distributed._functional_collectives import AsyncCollectiveTensor

        tensor = _as_distributed(tensor).to_local()
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.wait()
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())  # a gradient is often conjugated in name only
    # A slice of a matrix is flat, and still not side by side; a sign may be kept beside the values.
    return tensor.resolve_neg().reshape(-1).contiguous()


def local_gradient(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The values of a gradient that belong to this process's part of the parameter.

    Tensor parallelism leaves some gradients as partial sums, one on each rank. The norm of a sum does not
    follow from norms of its terms, so these are added first, as the optimizer itself does.
    """
    if is_distributed(gradient) and is_distributed(parameter):
        part, whole = _as_distributed(gradient), _as_distributed(parameter)
        if part.placements != whole.placements:
            gradient = part.redistribute(placements=whole.placements)
    return local(gradient)


def sharded_over(parameter: Tensor) -> "tuple[Any, tuple[int, ...]] | None":
    """The mesh and those of its dimensions over which the parameter's sums must be added; None: over none.

    Asked is whether a placement is Replicate, and not whether it is Shard: FSDP2 on top of tensor
    parallelism makes placements of a third kind, which are no Shard.
    """
    if not is_distributed(parameter):
        return None
    from torch.distributed.tensor import Partial, Replicate

    tensor = _as_distributed(parameter)
    if any(isinstance(placement, Partial) for placement in tensor.placements):
        raise InputError(
            f"a parameter of shape {list(tensor.shape)} is a partial sum on each rank {tensor.placements}: "
            "it has no values to measure before they are added"
        )
    mesh = tensor.device_mesh
    dims = tuple(
        dim
        for dim, placement in enumerate(tensor.placements)
        if not isinstance(placement, Replicate) and mesh.size(dim) > 1
    )
    return (mesh, dims) if dims else None


def add_over_ranks(columns: Tensor, parameters: Sequence[Tensor]) -> None:
    """Make the sums of this process's shards those of the whole tensors: in place, on every rank the same."""
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
    """Whether a kind of device computes in float64; Apple's mps does not."""
    if device_type == "cpu":
        return True
    try:
        torch.zeros(1, dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError, NotImplementedError):
        return False
    return True


def to_double(tensor: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return tensor.double() if supports_float64(tensor.device.type) else tensor.cpu().double()


def check_replicated(names: Sequence[str], tensors: Sequence[Tensor]) -> None:
    """Raise RanksDiffer on every rank if plain tensors are not the same everywhere.

    Megatron's tensor parallelism, expert parallelism and pipelines keep parts of a model in plain tensors. Nothing says
    how these belong together, and the part of rank 0 would be recorded as the model.
    """
    if not is_parallel():
        return
    plain = [(name, t) for name, t in zip(names, tensors, strict=True) if not is_distributed(t)]
    own: dict[str, tuple[tuple[int, ...], float]] = {}
    if plain:
        squares = summed([local(t) for _, t in plain])[:, 0].tolist()
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


def summed(tensors: Sequence[Tensor], *references: Sequence[Tensor]) -> Tensor:
    """The kernel's columns of flat local tensors, a row each: three of their own, three for each reference."""
    lists = [tensors, *references]
    places: dict[torch.device, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.device, []).append(i)
    parts = [_on_device(device, [[x[i] for i in rows] for x in lists]) for device, rows in places.items()]
    if len(parts) == 1:
        return parts[0]
    whole = torch.zeros(len(tensors), 3 * len(lists), dtype=torch.float64, device=parts[0].device)
    for rows, part in zip(places.values(), parts, strict=True):
        whole[rows] = part.to(whole.device)
    return whole


def _on_device(device: torch.device, lists: list[list[Tensor]]) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(by_kernel(lists))
    if supports_float64(device.type):
        return by_torch(lists)
    # One tensor at a time, so that few copies are there at once.
    rows = [by_kernel([[tensor.cpu()] for tensor in row]) for row in zip(*lists, strict=True)]
    return torch.from_numpy(np.concatenate(rows))


def by_kernel(lists: Sequence[Sequence[Tensor]]) -> NDArray[np.float64]:
    """On a CPU: addresses for the compiled loop, all tensors of a dtype at once, long ones in chunks."""
    count = len(lists[0])
    same: dict[str, list[int]] = {}
    rows: list[list[Tensor]] = []  # holds what was converted until it is summed
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


def by_torch(lists: Sequence[Sequence[Tensor]]) -> Tensor:
    """Elsewhere: the same columns by torch, a few operations for each piece, no transfer."""
    columns = torch.zeros(len(lists[0]), 3 * len(lists), dtype=torch.float64, device=lists[0][0].device)
    for row, tensors in zip(columns, zip(*lists, strict=True), strict=True):
        for pieces in zip(*(t.split(DEVICE_CHUNK) for t in tensors), strict=True):
            if not pieces[0].numel():
                continue
            b, *others = (piece.double() for piece in pieces)
            size = b.abs()
            finite = size.isfinite()
            sums = [b @ b, size.new_zeros(()), (~finite).sum()]
            for r in others:
                delta = b - r
                sums += [r @ r, r @ delta, delta @ delta]
            row[LARGEST] = torch.maximum(row[LARGEST], size.where(finite, 0.0).max())
            row += torch.stack(sums)
    return columns


def _as_distributed(tensor: Tensor) -> "DTensor":
    return tensor  # pyright: ignore[reportReturnType]
