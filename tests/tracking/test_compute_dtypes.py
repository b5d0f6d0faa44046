"""The tracker records the dtypes of the forward passes, and leaves nothing behind in the model."""

import copy
import pickle

import pytest
import torch
from torch import nn

import normgrowth as ng


class Mixed(nn.Module):
    """A model that computes in bfloat16 inside, as accelerate makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.body(x).float()


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in model.modules())


def trained(
    model: nn.Module, call: nn.Module | None = None, *, autocast: bool = False, steps: int = 3, **options
):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ng.NormTracker(model, optimizer, include="all", every=2, **options) as tracker:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = (call or model)(torch.ones(2, 4)).float().square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return tracker.trace


def model_of(kind: type[nn.Module] | None = None) -> nn.Module:
    torch.manual_seed(0)
    return kind() if kind else nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))


def test_autocast_outside_and_inside_of_the_model():
    assert trained(model_of()).compute_dtypes == ()
    assert trained(model_of(), autocast=True).compute_dtypes == ("BF16",)
    assert trained(model_of(Mixed)).compute_dtypes == ("BF16",)


def test_the_folder_has_them_also_after_a_resume(tmp_path):
    trained(model_of(), autocast=True, steps=4, out=tmp_path)
    assert ng.load(tmp_path).compute_dtypes == ("BF16",)
    assert ng.load(tmp_path).steps == (0, 2, 4)
    trained(model_of(), autocast=True, steps=2, out=tmp_path, resume_step=4)
    assert ng.load(tmp_path).compute_dtypes == ("BF16",)
    assert ng.load(tmp_path).steps == (0, 2, 4, 6)


def test_hooks_stay_for_one_step_and_are_not_copied():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ng.NormTracker(model, optimizer, include="all") as tracker:
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with torch.autocast("cpu", torch.bfloat16):
                other(torch.ones(2, 4))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(torch.ones(2, 4))  # an evaluation
        assert hooks(model) == 3
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert hooks(model) == 0
    assert tracker.trace.compute_dtypes == ()


def test_a_frozen_attention_keeps_its_fast_path():
    model = nn.ModuleList([nn.MultiheadAttention(4, 2).requires_grad_(False), nn.Linear(4, 4)])
    with ng.NormTracker(model, torch.optim.SGD(model[1].parameters(), lr=0.1), include="all"):
        assert hooks(model) == 0


@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_is_compiled_once_and_as_a_whole(autocast):
    graphs = []

    def backend(graph, inputs):
        graphs.append(len(graph.graph.nodes))
        return graph

    counts = {}
    for tracked in (False, True):
        torch._dynamo.reset()
        graphs.clear()
        model = model_of()
        call = torch.compile(model, backend=backend, fullgraph=True)
        if tracked:
            found = trained(model, call, autocast=autocast).compute_dtypes
            assert found == (("BF16",) if autocast else ())
        else:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                call(torch.ones(2, 4))
        counts[tracked] = list(graphs)
    assert counts[True] == counts[False]
    assert len(counts[True]) == 1
