"""Real ranks for distributed tests: `python -m tracking.distributed_worker RANKS FOLDER`, results as JSON in FOLDER.

One process loads torch and forks the ranks, so that a launch costs little; every check runs in all of them.
Each check trains a model twice: as one process would, and spread over the ranks. The records must be the same.
"""

import datetime
import json
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked_ranks import fork_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from tracking.lora_model import LoraModel

from normgrowth import InputError, Records
from normgrowth.errors import RanksDiffer
from normgrowth.stored_result import StoredResult
from normgrowth.trace.result import Trace
from normgrowth.tracking.measuring import measured_step
from normgrowth.tracking.tracker import NormTracker

STEPS = 3
# What is a sum of squares, or its root, is the same to rounding; what may cancel is judged by what cancels.
EXACT = [
    "norm",
    "rms",
    "largest",
    "numel",
    "nonfinite",
    "step_size",
    "relative_step",
    "growth_steps",
    "gradient_norm",
    "decay_step",
    "gradient_step",
    "equilibrium_norm",
    "equilibrium_angle",
    "learning_rate",
    "angle",
    "tangential",
    "lora_update_norm",
]


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Sizes that no number of ranks divides: 5, 6, 11; and a vector of 3, of which a fourth rank has nothing."""

    def __init__(self, hidden: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.layers = nn.ModuleList(Block(6, hidden) for _ in range(2))
        self.mix = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        mix = self.mix.full_tensor() if isinstance(self.mix, DTensor) else self.mix
        return self.head(x) * mix.prod()


def model_of(seed: int = 0, **sizes: int) -> Model:
    torch.manual_seed(seed)
    model = Model(**sizes).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.2, 0.4)
    return model


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.3}
    return torch.optim.AdamW([matrices, {"params": [p for p in parameters if p.dim() == 1]}], lr=0.01)


def given_gradient(name: str, shape: torch.Size, step: int) -> torch.Tensor:
    seed = step * 1000 + sum(name.encode())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clean(name: str) -> str:
    return name.removeprefix("module.")


def with_given_gradients(model: nn.Module, step: int) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            whole = given_gradient(clean(name), parameter.shape, step)
            if isinstance(parameter, DTensor):
                whole = distribute_tensor(
                    whole, parameter.device_mesh, [Replicate()] * parameter.device_mesh.ndim
                )
                whole = whole.redistribute(placements=parameter.placements)
            parameter.grad = whole


def with_real_gradients(model: nn.Module, step: int) -> None:
    model.zero_grad()
    tokens = torch.randint(12, (2, 4), generator=torch.Generator().manual_seed(step))
    logits = model(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten()).backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, gradients, out: Path | None = None) -> Trace:
    with NormTracker(
        model, optimizer, every=1, include="all", out=out, compare_first=True, run="run"
    ) as tracker:
        for step in range(1, STEPS + 1):
            gradients(model, step)
            optimizer.step()
    if out is None:
        return tracker.trace  # on every rank
    if dist.get_rank() == 0:
        assert_same(tracker.trace.records, Records.read(out), 0.0)
    else:
        with pytest.raises(InputError, match="only on rank 0"):
            _ = tracker.trace.records
    dist.barrier()
    return Trace.from_stored(StoredResult.read(out))


def assert_same(found: Records, wanted: Records, tolerance: float) -> None:
    key = ("step", "level", "name", "layer", "role", "reference", "quantity")

    def sorted_rows(records: Records) -> tuple[list[tuple], np.ndarray]:
        columns = [records.table[name].to_pylist() for name in (*key, "value")]
        rows = sorted(zip(*columns, strict=True), key=lambda row: (*row[:3], row[5] or "", row[6]))
        return [row[:-1] for row in rows], np.array([row[-1] for row in rows])

    (mine, values), (theirs, true) = sorted_rows(found), sorted_rows(wanted)
    assert mine == theirs, sorted(map(str, {*mine} ^ {*theirs}))[:5]
    exact = np.array([row[-1] in EXACT for row in mine])
    np.testing.assert_allclose(values[exact], true[exact], rtol=tolerance, atol=0)
    np.testing.assert_allclose(values[~exact], true[~exact], rtol=tolerance, atol=1e3 * tolerance)


def compare(spread, folder: Path, *, tolerance: float = 1e-12, **sizes: int) -> None:
    """Given gradients with AdamW, to rounding; then those of real passes with SGD, written to a folder."""
    for out, optimizer_of, gradients, within in (
        (None, adamw, with_given_gradients, tolerance),
        (folder, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), with_real_gradients, 1e-9),
    ):
        single = model_of(**sizes)
        wanted = train(single, optimizer_of(single), gradients)
        parallel = spread(model_of(**sizes))
        found = train(parallel, optimizer_of(parallel), gradients, out)
        assert_same(found.records, wanted.records, within)
        assert found.ranks == dist.get_world_size()
        assert not found.notes


def sharded(model: Model, mesh) -> Model:
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: Model, mesh) -> Model:
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.norm": SequenceParallel(),  # leaves gradients that are partial sums
        "layers.*.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.*.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    model.head.weight = model.embedding.weight
    return model


def ddp(folder: Path) -> None:
    compare(DistributedDataParallel, folder)


def fsdp(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    compare(lambda model: sharded(model, mesh), folder)
    lengths = [None] * dist.get_world_size()
    mix = dict(sharded(model_of(), mesh).named_parameters())["mix"]
    dist.all_gather_object(lengths, mix.to_local().numel())
    assert sum(lengths) == 3
    assert len(set(lengths)) > 1, "the shards are even: nothing was tested"


def hsdp(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    compare(lambda model: sharded(model, mesh), folder)


def tp(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("tp", "rest"))["tp"]
    compare(lambda model: tensor_parallel(model, mesh), folder, hidden=10)
    model = tensor_parallel(model_of(hidden=10), mesh)
    with_real_gradients(model, 1)
    kinds = {p for q in model.parameters() if isinstance(q.grad, DTensor) for p in q.grad.placements}
    assert any(isinstance(kind, Partial) for kind in kinds), (
        "no gradient is a partial sum: nothing was tested"
    )


def fsdp_tp(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def both(model: Model) -> Model:
        return sharded(tensor_parallel(model, mesh["tp"]), mesh["dp"])

    compare(both, folder, hidden=10)
    kinds = {type(p).__name__ for q in both(model_of(hidden=10)).parameters() for p in q.placements}
    assert "_StridedShard" in kinds, "no strided shard: nothing was tested"


def refusals(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Module()
    model.part = nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Partial()]))
    wrapped = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    for wrong, word in ((model, "partial sum"), (wrapped, "fully_shard")):
        with pytest.raises(InputError, match=word):
            NormTracker(wrong, torch.optim.SGD(wrong.parameters(), lr=0.1), include="all")


def one_reduction(folder: Path) -> None:
    """All sums of a mesh travel together: one reduction of sums and one of maxima, however many tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = sharded(model_of(), mesh)
    optimizer = adamw(model)
    with_given_gradients(model, 1)
    calls = []
    plain = dist.all_reduce
    with NormTracker(model, optimizer, every=2, include="all"):
        dist.all_reduce = lambda tensor, *args, **kwargs: (
            calls.append(tensor.shape) or plain(tensor, *args, **kwargs)
        )
        try:
            for measured in (True, True, False):  # the weights at the start, step 2, and no other step
                calls.clear()
                optimizer.step()
                assert len(calls) == (2 if measured else 0), calls
        finally:
            dist.all_reduce = plain


def logit_scale(folder: Path) -> None:
    """Outputs that are spread over the ranks, as for a loss in parallel: scale and largest of the whole."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))

    def scale(parallel: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 10))
        plan = {"0": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
        model = parallelize_module(model, mesh, plan) if parallel else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with NormTracker(model, optimizer, every=1, include="all", logits=True) as tracker:
            output = model(x)
            assert isinstance(output, DTensor) == parallel
            output.sum().backward()
            optimizer.step()
        return [tracker.trace.records.series(quantity)[1][0] for quantity in ("logit_rms", "logit_largest")]

    np.testing.assert_allclose(scale(True), scale(False), rtol=1e-6)


def same_losses(folder: Path) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def losses(tracked: bool) -> list[float]:
        model = sharded(model_of(), mesh)
        optimizer = adamw(model)
        tracker = (
            NormTracker(model, optimizer, every=2, include="all", out=folder, compare_first=True)
            if tracked
            else None
        )
        found = []
        for step in range(6):
            tokens = torch.randint(
                12, (2, 4), generator=torch.Generator().manual_seed(step + 10 * dist.get_rank())
            )
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        if tracker:
            tracker.close()
        return found

    assert losses(True) == losses(False)


def forward_only(folder: Path) -> None:
    """FSDP2 leaves the root unsharded after an evaluation: before the tracker is made, and before each step."""

    def gradients(model: nn.Module, step: int) -> None:
        with_real_gradients(model, step)
        with torch.no_grad():
            model(torch.zeros(2, 4, dtype=torch.int64))

    single = model_of()
    wanted = train(single, torch.optim.SGD(single.parameters(), lr=0.1), gradients).records
    parallel = sharded(model_of(), init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    with torch.no_grad():
        parallel(torch.zeros(2, 4, dtype=torch.int64))
    assert_same(train(parallel, optimizer, gradients).records, wanted, 1e-9)


def plain_parts(folder: Path) -> None:
    """Megatron's tensor parallelism and pipelines: plain tensors of which each rank has its own."""
    for model in (
        nn.Sequential(nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(3, 3), *([nn.Linear(3, 3)] if dist.get_rank() else [])),
    ):
        torch.manual_seed(dist.get_rank())
        for p in model.parameters():
            nn.init.normal_(p) if len(model) == 1 else nn.init.ones_(p)
        with pytest.raises(RanksDiffer) as refused:
            NormTracker(model, torch.optim.SGD(model.parameters(), lr=0.1), include="all")
        assert refused.value.rank == 1
        assert refused.value.name in ("0.weight", "0.bias", "1.weight", "1.bias")
        dist.barrier()


def drifting_ranks(folder: Path) -> None:
    """A forgotten DDP: equal weights at the start, then each rank takes its own steps. With DDP there is no warning."""
    for parallel in (True, False):
        model = model_of()
        trained = DistributedDataParallel(model) if parallel else model
        optimizer = adamw(model)
        with NormTracker(trained, optimizer, every=1, include="all") as tracker:
            for step in (1, 2):
                optimizer.zero_grad()
                with_real_gradients(trained, 10 * step + dist.get_rank())
                optimizer.step()
            kinds = {warning.kind for warning in tracker.warnings}
            assert ("ranks" in kinds) != parallel, tracker.warnings
            if not parallel:
                first = next(warning for warning in tracker.warnings if warning.kind == "ranks")
                assert not tracker.ok
                assert first.step == 1
                assert first.value > first.threshold
                assert any("differs between ranks" in note for note in tracker.trace.notes)


def out_of_memory(folder: Path) -> None:
    """One rank has no room for its copies at one step: NaN there, and the others do not wait for it."""
    real, fails = measured_step.local, []

    def local(tensor):
        if fails:
            raise fails.pop()
        return real(tensor)

    def gradients(model: nn.Module, step: int) -> None:
        with_given_gradients(model, step)
        fails[:] = [torch.OutOfMemoryError("no room")] if step == 2 and dist.get_rank() == 1 else []

    measured_step.local = local
    try:
        model = sharded(model_of(), init_device_mesh("cpu", (dist.get_world_size(),)))
        found = train(model, adamw(model), gradients)
    finally:
        measured_step.local = real
    steps, norms = found.records.series("norm")
    assert steps.tolist() == [0, 1, 2, 3]
    assert np.isnan(norms).tolist() == [False, False, True, False]
    assert any("step 2: out of memory" in note for note in found.notes)


def lora(folder: Path) -> None:
    """The factors of adapters are spread over the ranks, A by its rank and B by its rows."""

    def trained(ranks: int) -> Records:
        torch.manual_seed(0)
        model = LoraModel().double()
        if ranks > 1:
            mesh = init_device_mesh("cpu", (ranks,))
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return train(model, adamw(model), with_given_gradients).records

    alone, spread = trained(1), trained(dist.get_world_size())
    assert alone.series("lora_update_norm")[1][-1] > 0
    assert_same(spread, alone, 1e-12)


CHECKS = {
    2: (
        *(ddp, fsdp, tp, refusals, one_reduction, logit_scale, same_losses),
        *(forward_only, plain_parts, drifting_ranks, out_of_memory, lora),
    ),
    4: (ddp, fsdp, hsdp, tp, fsdp_tp, lora),
}


def run_rank(rank: int, ranks: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    results = {}
    for check in CHECKS[ranks]:
        own = folder / check.__name__
        try:
            check(own)
            results[check.__name__] = "ok"
        except Exception:
            results[check.__name__] = traceback.format_exc()
        (folder / f"results-{rank}.json").write_text(json.dumps(results))
        dist.barrier()


def main(ranks: int, folder: Path) -> None:
    sys.exit(0 if fork_ranks(ranks, partial(run_rank, ranks=ranks, folder=folder), 100) else 1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
