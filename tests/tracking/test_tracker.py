"""NormTracker in one process: every number against float64 and obvious code."""

import copy
import gc
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from tracking.tiny_training import WholeTracker, backward, expected, groups_of, members, row_of, tiny, values

from normgrowth import InputError, SeriesWarning, equilibrium, trace
from normgrowth.moments.moments import accumulated
from normgrowth.tracking import tensor_sums as sums

OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(groups_of(m, 0.0), lr=0.1),
    "sgd momentum": lambda m: torch.optim.SGD(groups_of(m, 0.05), lr=0.1, momentum=0.9),
    "sgd nesterov foreach": lambda m: torch.optim.SGD(
        groups_of(m, 0.0), lr=0.1, momentum=0.9, nesterov=True, foreach=True
    ),
    "adam": lambda m: torch.optim.Adam(groups_of(m, 0.05), lr=0.01),
    "adam decoupled": lambda m: torch.optim.Adam(groups_of(m, 0.2), lr=0.01, decoupled_weight_decay=True),
    "adamw loop": lambda m: torch.optim.AdamW(groups_of(m, 0.2, lr=0.003), lr=0.01, foreach=False),
    "adamw foreach": lambda m: torch.optim.AdamW(groups_of(m, 0.2), lr=0.01, foreach=True),
    "adamw fused": lambda m: torch.optim.AdamW(groups_of(m, 0.2), lr=0.01, fused=True),
    "adamw tensor rate": lambda m: torch.optim.AdamW(
        groups_of(m, 0.2), lr=torch.tensor(0.01, dtype=torch.float64)
    ),
}
COUPLED = ("sgd momentum", "adam")  # their decay has no part of the step to itself


def snapshot(model):
    return {name: values(p, p) for name, p in model.named_parameters()}


def gradients(model):
    return {name: values(p.grad, p) for name, p in model.named_parameters()}


def decays(model, optimizer):
    """ηλ of each parameter, from the groups."""
    factor = {p: float(g["lr"]) * g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    return {name: factor.get(p, 0.0) for name, p in model.named_parameters()}


def assert_close(found, wanted, rtol=1e-11, skip=()):
    for quantity, value in wanted.items():
        if quantity not in skip:
            assert found[quantity] == pytest.approx(value, rel=rtol, abs=1e-300, nan_ok=True), quantity


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_number_equals_obvious_code(kind):
    model = tiny()
    optimizer = OPTIMIZERS[kind](model)
    history = {}
    with WholeTracker(model, optimizer, every=1, compare_first=True) as tracker:
        for step in range(1, 5):
            optimizer.zero_grad()
            backward(model, step)
            before, gradient = snapshot(model), gradients(model)
            optimizer.step()
            history[step] = before, snapshot(model), gradient, decays(model, optimizer)
        records = tracker.trace.records
    assert records.distinct("step") == [0, 1, 2, 3, 4]
    things = {(r["level"], r["name"]) for r in records.table.to_pylist()}
    assert {level for level, _ in things} == {"tensor", "layer", "layer_matrices", "role", "part", "model"}
    assert len([1 for level, _ in things if level == "tensor"]) == len(list(model.parameters()))
    for level, name in things:
        of = members(model, level, name)
        for step, parts in history.items():
            found = row_of(records, step, level, name)
            wanted = expected(*([part[n] for n in of] for part in parts))
            if kind in COUPLED and any(parts[3][n] for n in of):
                wanted |= {"decay_step": math.nan, "gradient_step": math.nan}
            frozen = of == ["scale"]
            # Parts of a step that almost cancel are as exact as their terms.
            assert_close(found, wanted, skip=("angle",) if frozen else ("radial", "tangential"))
            assert found["angle"] == pytest.approx(0.0 if frozen else wanted["angle"], rel=1e-9)
            size = wanted["step_size"]
            assert found["radial"] == pytest.approx(wanted["radial"], abs=1e-10 * size)
            assert found["tangential"] == pytest.approx(wanted["tangential"], rel=1e-9, abs=1e-10 * size)
            start = np.concatenate([history[1][0][n] for n in of])
            moved = np.concatenate([parts[1][n] for n in of]) - start
            assert found["step_size to first"] == pytest.approx(np.linalg.norm(moved), rel=1e-11)
            assert found["total_growth"] == pytest.approx(
                sum(np.sum(parts[1][n] ** 2) for n in of) - np.sum(start**2), rel=1e-6, abs=1e-9
            )


@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if "foreach" not in kind])
def test_learning_rate_and_equilibrium(kind):
    model = tiny()
    optimizer = OPTIMIZERS[kind](model)
    tracker = WholeTracker(model, optimizer, every=1)
    backward(model, 1)
    gradient = gradients(model)
    optimizer.step()
    settings = {p: group for group in optimizer.param_groups for p in group["params"]}
    norms, angles = {}, {}
    for name, parameter in model.named_parameters():
        group = settings.get(parameter)
        norms[name] = angles[name] = math.nan
        if group and group["weight_decay"]:
            lr, decay = float(group["lr"]), group["weight_decay"]
            if kind.startswith("sgd"):
                g = float(np.linalg.norm(gradient[name]))
                e = equilibrium("sgd", lr=lr, weight_decay=decay, gradient_norm=g, momentum=0.9)
                norms[name], angles[name] = e.norm, e.rotation
            elif kind != "adam":
                e = equilibrium("adamw", lr=lr, weight_decay=decay, numel=parameter.numel())
                norms[name], angles[name] = e.norm, e.rotation
        found = row_of(tracker.trace.records, 1, "tensor", name)
        wanted = {"equilibrium_norm": norms[name], "equilibrium_angle": angles[name]}
        if kind == "adamw loop":
            wanted["learning_rate"] = math.nan if group is None else group["lr"]
        else:
            assert "learning_rate" not in found
        assert_close(found, wanted)
    whole = row_of(tracker.trace.records, 1, "model", "model")
    assert math.isnan(whole["equilibrium_norm"])  # vectors do not decay
    assert ("learning_rate" in whole) == (kind != "adamw loop")
    if "learning_rate" in whole:
        assert whole["learning_rate"] == float(optimizer.param_groups[0]["lr"])


def test_equilibrium_of_a_group_is_that_of_its_tensors_together():
    """Several tensors with different settings as one vector: E⟨θ, θ'⟩ adds, and so does E‖θ‖²."""
    model = nn.ModuleDict({"a": nn.Linear(4, 5, bias=False), "b": nn.Linear(7, 3, bias=False)})
    optimizer = torch.optim.AdamW(
        [
            {"params": [model["a"].weight], "lr": 0.01, "weight_decay": 0.3},
            {"params": [model["b"].weight], "lr": 0.02, "weight_decay": 0.9},
        ]
    )
    tracker = WholeTracker(model, optimizer, every=1)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    parts = [
        equilibrium("adamw", lr=0.01, weight_decay=0.3, numel=20),
        equilibrium("adamw", lr=0.02, weight_decay=0.9, numel=21),
    ]
    squares = np.array([e.norm**2 for e in parts])
    cosines = np.cos([e.rotation for e in parts])
    found = row_of(tracker.trace.records, 1, "model", "model")
    assert found["equilibrium_norm"] == pytest.approx(np.sqrt(squares.sum()), rel=1e-12)
    assert np.cos(found["equilibrium_angle"]) == pytest.approx(squares @ cosines / squares.sum(), rel=1e-12)


DECOUPLED = {
    "AdamW": lambda p, decay: torch.optim.AdamW(p, lr=0.01, weight_decay=decay),
    "NAdam": lambda p, decay: torch.optim.NAdam(p, lr=0.01, weight_decay=decay, decoupled_weight_decay=True),
    "RAdam": lambda p, decay: torch.optim.RAdam(p, lr=0.01, weight_decay=decay, decoupled_weight_decay=True),
    "Adafactor": lambda p, decay: torch.optim.Adafactor(p, lr=0.01, weight_decay=decay),
    "Muon": lambda p, decay: torch.optim.Muon(p, lr=0.01, weight_decay=decay),
}


@pytest.mark.parametrize("kind", [k for k in DECOUPLED if hasattr(torch.optim, k)])
def test_the_gradients_part_is_the_step_without_decay(kind):
    """A first step from the same weights and gradients, once with decay and once without."""
    steps = {}
    for decay in (0.0, 5.0):
        torch.manual_seed(0)
        model = nn.Linear(5, 4, bias=False, dtype=torch.float64)
        optimizer = DECOUPLED[kind](model.parameters(), decay)
        tracker = WholeTracker(model, optimizer, every=1)
        model.weight.grad = torch.randn(4, 5, dtype=torch.float64)
        optimizer.step()
        steps[decay] = row_of(tracker.trace.records, 1, "model", "model")
    assert steps[5.0]["gradient_step"] == pytest.approx(steps[0.0]["step_size"], rel=1e-9)
    assert steps[5.0]["step_size"] != pytest.approx(steps[0.0]["step_size"], rel=1e-3)
    assert steps[0.0]["decay_step"] == 0.0


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_same_as_a_trace_of_saved_weights(tmp_path, dtype, kernel, monkeypatch):
    """To the bit where the kernel sums, as it does for many values; to rounding where torch does."""
    monkeypatch.setattr(sums, "KERNEL_VALUES", 0 if kernel else sums.KERNEL_VALUES)
    model = tiny(dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def save(step):
        state = {name: p.detach().clone() for name, p in model.named_parameters()}
        save_file(state, tmp_path / f"step-{step}.safetensors")

    save(0)
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in (1, 2):
            for i, p in enumerate(model.parameters()):
                p.grad = torch.full_like(p, 0.25 * (i % 3 - 1) + step / 8)
            optimizer.step()
            save(step)
    traced = trace(tmp_path, include="all", first=False).records
    compared = 0
    live = {
        (r["step"], r["level"], r["name"], r["quantity"]): r for r in tracker.trace.records.table.to_pylist()
    }
    for row in traced.table.to_pylist():
        if row["step"] > 0:
            mine = live[row["step"], row["level"], row["name"], row["quantity"]]
            assert (mine["layer"], mine["role"]) == (row["layer"], row["role"])
            if row["level"] == "tensor" and kernel:
                np.testing.assert_equal(mine["value"], row["value"], str(row))
            else:  # files order tensors by name, and so they are added in another order
                np.testing.assert_allclose(mine["value"], row["value"], rtol=1e-9, err_msg=str(row))
            compared += 1
    assert compared > 1000


@pytest.mark.parametrize("kind", ["adamw fused", "adamw foreach", "sgd momentum"])
def test_losses_are_the_same_to_the_bit(kind, tmp_path):
    def losses(tracked):
        model = tiny()
        optimizer = OPTIMIZERS[kind](model)
        tracker = (
            WholeTracker(model, optimizer, every=2, out=tmp_path / "run", compare_first=True)
            if tracked
            else None
        )
        found = []
        for step in range(12):
            optimizer.zero_grad()
            found.append(backward(model, step))
            optimizer.step()
        if tracker:
            tracker.close()
        return found, [p.detach().clone() for p in model.parameters()], torch.rand(3)

    (plain, weights, drawn), (seen, same_weights, same_drawn) = losses(False), losses(True)
    assert plain == seen
    assert all(torch.equal(a, b) for a, b in zip(weights, same_weights, strict=True))
    assert torch.equal(drawn, same_drawn)


def test_when_it_measures():
    def measured(every, steps=20, **options):
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with WholeTracker(model, optimizer, every=every, **options) as tracker:
            for _ in range(steps):
                optimizer.step()
            assert tracker.step == steps + options.get("resume_step", 0)
            return tracker.trace.records.distinct("step")

    assert measured(7) == [0, 7, 14]
    assert measured("powers") == [0, 1, 2, 4, 8, 16]
    assert measured(lambda step: step in (3, 5)) == [0, 3, 5]
    assert measured(10, resume_step=25) == [30, 40]
    assert measured(30) == [0]
    for wrong in (0, -1, "sometimes", 2.5):
        with pytest.raises(InputError, match="every must be"):
            measured(wrong)


def test_totals_only_where_every_step_is_measured():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=2) as tracker:
        for step in range(4):
            backward(model, step)
            optimizer.step()
    assert "growth" in tracker.trace.records.distinct("quantity")
    assert not any(q.startswith("total_") for q in tracker.trace.records.distinct("quantity"))


def test_a_step_that_failed_is_forgotten():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        raise ZeroDivisionError

    with WholeTracker(model, optimizer, every=lambda step: step == 1) as tracker:
        with pytest.raises(ZeroDivisionError):
            optimizer.step(closure)
        assert tracker.step == 0
        tracker.step = 5
        optimizer.step()
        assert tracker.trace.steps == (0,)


def test_the_optimizer_within_a_wrapper_is_hooked():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self, closure=None):
            pass  # as a wrapper does while gradients accumulate

    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = Wrapper(optimizer)
    with WholeTracker(model, wrapper, every=1) as tracker:
        wrapper.step()
        assert tracker.step == 0
        optimizer.step()
        assert tracker.step == 1


def test_news_are_told_once():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with WholeTracker(model, optimizer, every=2, levels=["model"]) as tracker:
        assert tracker.latest() == {}
        backward(model, 1)
        optimizer.step()
        assert tracker.latest() == {}
        optimizer.step()
        found = tracker.latest(("norm", "gradient_norm", "total_growth", "learning_rate"), ("model", "layer"))
        assert tracker.latest() == {}
    blocks = {f"{q}/{name}" for name in ("model", "layer.0", "layer.1") for q in ("norm", "gradient_norm")}
    assert found.keys() == blocks | {"learning_rate/model"}
    assert found["norm/model"] == row_of(tracker.trace.records, 2, "model", "model")["norm"]
    assert found["norm/layer.1"] == pytest.approx(
        np.sqrt(sum(np.sum(values(p, p) ** 2) for p in model.layers[1].parameters())), rel=1e-12
    )


def test_accumulated_gradients_are_one_step():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in range(6):
            backward(model, step)
            if step % 3 == 2:
                total = np.sqrt(sum((g**2).sum() for g in gradients(model).values()))
                optimizer.step()
                found = row_of(tracker.trace.records, tracker.step, "model", "model")
                assert found["gradient_norm"] == pytest.approx(total, rel=1e-12)
                optimizer.zero_grad()
    assert tracker.trace.records.distinct("step") == [0, 1, 2]


def test_a_closure_computes_the_gradients_within_the_step():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1) as tracker:

        def closure():
            optimizer.zero_grad()
            return backward(model, 1)

        optimizer.step(closure)
    total = np.sqrt(sum((g**2).sum() for g in gradients(model).values()))
    found = row_of(tracker.trace.records, 1, "model", "model")
    assert found["gradient_norm"] == pytest.approx(total, rel=1e-12)
    assert found["step_size"] == pytest.approx(0.1 * total, rel=1e-5)


def test_a_gradient_scaler_that_leaves_the_scale_to_a_fused_optimizer():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with WholeTracker(model, optimizer, every=1) as tracker:
        backward(model, 1)
        plain = gradients(model)
        for p in model.parameters():
            if p.grad is not None:
                p.grad *= 1024
        scaler.scale(torch.ones(()))  # the scaler wants to have been used
        scaler.step(optimizer)
        scaler.update()
        total = np.sqrt(sum((g**2).sum() for g in plain.values()))
        found = row_of(tracker.trace.records, 1, "model", "model")
        assert found["gradient_norm"] == pytest.approx(total, rel=1e-6)
        assert found["step_size"] > 0
        next(model.layers.parameters()).grad.fill_(math.inf)
        scaler.step(optimizer)  # does nothing
        found = row_of(tracker.trace.records, 2, "model", "model")
        assert (found["step_size"], found["decay_step"], found["gradient_step"]) == (0.0, 0.0, 0.0)


def test_sparse_gradients_and_complex_weights():
    model = nn.Module()
    model.table = nn.Embedding(6, 2, sparse=True)
    model.phase = nn.Parameter(torch.tensor([3 + 4j, 0j]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with WholeTracker(model, optimizer, every=1) as tracker:
        (model.table(torch.tensor([1, 1, 4])).sum() + model.phase.abs().sum()).backward()
        optimizer.step()
    assert row_of(tracker.trace.records, 1, "tensor", "table.weight")["gradient_norm"] == pytest.approx(
        math.sqrt(10)
    )
    phase = row_of(tracker.trace.records, 1, "tensor", "phase")
    assert phase["norm"] == pytest.approx(4.0, rel=1e-6)
    assert phase["step_size"] == pytest.approx(1.0, rel=1e-6)


def test_not_finite_weights_are_counted_and_named_nan():
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with WholeTracker(model, optimizer, every=1) as tracker:
        model.weight.grad = torch.tensor([[math.inf, 0, 0], [0, math.nan, 0]])
        with pytest.warns(SeriesWarning, match="NaN or infinite"):
            optimizer.step()
    found = row_of(tracker.trace.records, 1, "model", "model")
    assert found["nonfinite"] == 2
    assert math.isnan(found["angle"])
    assert found["largest"] == model.weight[torch.isfinite(model.weight)].abs().max().item()


def test_names_are_clean_under_wrappers():
    model = tiny()
    wrapped = nn.Module()
    wrapped.module = model  # as DDP does
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = {}
    for kind, what in (("plain", model), ("wrapped", wrapped)):
        with WholeTracker(what, optimizer, every=1) as tracker:
            optimizer.step()
            names[kind] = tracker.trace.records.where(level="tensor").distinct("name")
    assert names["wrapped"] == names["plain"]
    assert "head.weight" not in names["plain"]  # tied to the embedding


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_model_has_the_names_and_numbers_of_a_plain_one():
    found = {}
    for compiled in (False, True):
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        for i, p in enumerate(model.parameters()):
            nn.init.constant_(p, 0.1 + i)
        net = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with WholeTracker(net, optimizer, every=1) as tracker:
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        found[compiled] = tracker.trace.records.table
    a, b = found[False], found[True]
    assert a["name"].to_pylist() == b["name"].to_pylist()
    np.testing.assert_allclose(a["value"].to_numpy(), b["value"].to_numpy(), rtol=1e-5, atol=1e-7)


def test_selection_and_scopes():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(
        model, optimizer, every=1, include="blocks", exclude="norm", levels=["model"]
    ) as tracker:
        optimizer.step()
    assert tracker.trace.records.distinct("level") == ["model"]
    wanted = sum(p.numel() for n, p in model.named_parameters() if n.startswith("layers") and "norm" not in n)
    assert row_of(tracker.trace.records, 1, "model", "model")["numel"] == wanted
    with pytest.raises(InputError, match="Tiny: no tensor is counted"):
        WholeTracker(model, optimizer, select="nothing like this")
    with pytest.raises(InputError, match=r"levels must be among .*, got 'head'"):
        WholeTracker(model, optimizer, levels=["head"])


def test_an_optimizer_of_another_model_is_refused():
    optimizer = torch.optim.SGD([*tiny().parameters(), nn.Parameter(torch.zeros(2, 3))], lr=0.1)
    with pytest.raises(InputError, match=r"has 27 parameters that are not in the model .*\[8\]"):
        WholeTracker(tiny(), optimizer)


def test_freezing_thawing_and_later_groups_need_no_word():
    model = tiny()
    late = model.layers[1].linear1.weight
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p is not late and p.requires_grad], lr=0.01
    )
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in range(1, 5):
            optimizer.zero_grad()
            model.embedding.weight.requires_grad_(step != 2)
            if step == 3:
                optimizer.add_param_group({"params": [late], "lr": 0.02})
            backward(model, step)
            optimizer.step()
    records = tracker.trace.records
    sizes = {
        name: records.series("step_size", level="tensor", name=name)[1] > 0
        for name in ("embedding.weight", "layers.1.linear1.weight")
    }
    assert sizes["embedding.weight"].tolist() == [True, False, True, True]
    assert sizes["layers.1.linear1.weight"].tolist() == [False, False, True, True]
    assert row_of(records, 2, "tensor", "embedding.weight")["decay_step"] == 0.0
    assert records.where(level="model", quantity="learning_rate").distinct("step") == [1, 2]
    assert row_of(records, 3, "tensor", "layers.1.linear1.weight")["learning_rate"] == 0.02


def test_other_parameters_in_the_middle_of_a_run_are_told_and_measured():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1, compare_first=True) as tracker:
        backward(model, 1)
        optimizer.step()
        model.extra = nn.Linear(2, 2, bias=False)
        optimizer.add_param_group({"params": model.extra.parameters()})
        model.extra.weight.grad = torch.ones(2, 2)
        with pytest.warns(SeriesWarning, match=r"step 2: .* \(1 new names, 0 removed"):
            optimizer.step()
        assert row_of(tracker.trace.records, 2, "tensor", "extra.weight")["step_size"] == pytest.approx(
            0.2, rel=1e-6
        )
        model.scale = nn.Parameter(torch.full((8,), 2.0))  # the optimizer still has the old one
        with pytest.warns(SeriesWarning, match=r"has 1 parameters that are not in the model .*\[8\]"):
            optimizer.step()
        records = tracker.trace.records
    assert row_of(records, 3, "tensor", "scale")["norm"] == pytest.approx(2 * math.sqrt(8))
    assert records.distinct("step") == [0, 1, 2, 3]
    assert len(tracker.trace.notes) == 2
    assert records.where(quantity="total_growth").distinct("step") == [1]


def test_a_closed_tracker_leaves_nothing_behind():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = copy.copy(optimizer._optimizer_step_pre_hooks), copy.copy(optimizer._optimizer_step_post_hooks)
    tracker = WholeTracker(model, optimizer, every=1)
    optimizer.step()
    with pytest.raises(KeyboardInterrupt), tracker:
        raise KeyboardInterrupt
    tracker.close()  # once more does no harm
    assert hooks == (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    optimizer.step()
    assert tracker.trace.records.distinct("step") == [0, 1]


def test_weights_are_copied_during_a_measured_step_only():
    model = nn.Linear(300, 300, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.weight.grad = torch.ones_like(model.weight)

    def copies():
        gc.collect()
        return sum(
            1
            for thing in gc.get_objects()
            if type(thing) in (torch.Tensor, nn.Parameter) and thing.numel() == 90000
        )

    during = []
    idle = copies()
    with WholeTracker(model, optimizer, every=2) as tracker:
        handle = optimizer.register_step_pre_hook(lambda *_: during.append(copies()))
        for _ in range(2):
            optimizer.step()
        handle.remove()
        assert tracker.trace.records.distinct("step") == [0, 2]
        assert copies() == idle
    assert during == [idle, idle + 1]


@pytest.mark.parametrize("sizes", [(10, 1000), (2000, 2000)])
def test_torchs_own_sums_equal_the_kernels(monkeypatch, sizes):
    """Buckets, pieces, an empty tensor, values that are not finite."""
    monkeypatch.setattr(sums, "SIZES", {"cpu": sums.Sizes(*sizes)})
    monkeypatch.setattr(sums, "BUCKET", 1500)
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        b = [torch.randn(n).to(dtype) for n in (2500, 0, 1, 1000, 7)]
        b[3][7], b[3][8], b[4][0] = math.inf, math.nan, -math.inf
        refs = [[x + torch.randn(len(x)).to(dtype) for x in b] for _ in range(2)]
        found = sums.by_torch([b, *refs]).numpy()
        np.testing.assert_allclose(found, sums.by_kernel([b, *refs]), rtol=1e-12)
        x, y = b[0].double().numpy(), refs[1][0].double().numpy()
        wanted = [x @ x, np.abs(x).max(), 0, y @ y, y @ (x - y), (x - y) @ (x - y)]
        np.testing.assert_allclose(found[0, [0, 1, 2, 6, 7, 8]], wanted, rtol=1e-12)
        assert found[3, 2] == 2
        assert found[4, 2] == 1


def test_sums_of_squares(monkeypatch):
    """Pieces, small and empty tensors, dtypes and values that are not finite; the same with the kernel."""
    monkeypatch.setattr(sums, "SIZES", {"cpu": sums.Sizes(10, 1000)})
    torch.manual_seed(0)
    tensors = [
        torch.randn(n).to(d) for n, d in ((2500, torch.float32), (0, torch.float32), (7, torch.bfloat16))
    ]
    tensors += [torch.tensor([1.0, math.inf]), torch.tensor([math.nan, 1.0])]
    assert len(sums.squares([])) == 0
    found = sums.squares(tensors).numpy()
    wanted = [float(np.sum(x.double().numpy() ** 2)) for x in tensors]
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    monkeypatch.setattr(sums, "KERNEL_VALUES", 0)
    np.testing.assert_allclose(sums.squares(tensors).numpy(), wanted, rtol=1e-13)


def test_many_values_on_a_cpu_are_summed_by_the_kernel(monkeypatch):
    """Few are not: a small run does not load the compiler."""
    used = []
    monkeypatch.setattr(sums, "by_kernel", lambda lists: used.append(len(lists)) or np.zeros((1, 3)))
    sums.tensor_sums([torch.ones(100)])
    assert used == []
    monkeypatch.setattr(sums, "KERNEL_VALUES", 100)
    sums.tensor_sums([torch.ones(100)])
    assert used == [1]


def test_long_tensors_are_summed_in_chunks_and_threads(monkeypatch):
    monkeypatch.setattr(sums, "CHUNK", 1000)
    monkeypatch.setattr(sums, "THREADED", 0)
    torch.manual_seed(0)
    b = [torch.randn(n) for n in (10500, 3, 2000)]
    r = [torch.randn(len(x)) for x in b]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = sums.by_kernel([b, r])
        torch.set_num_threads(1)
        np.testing.assert_array_equal(found, sums.by_kernel([b, r]))
    finally:
        torch.set_num_threads(threads)
    for row, x, y in zip(found, b, r, strict=True):
        x, y = x.double().numpy(), y.double().numpy()
        wanted = [x @ x, np.abs(x).max(), 0, y @ y, y @ (x - y), (x - y) @ (x - y)]
        np.testing.assert_allclose(row, wanted, rtol=1e-12)


def test_transposed_weights_and_mixed_dtypes():
    model = nn.Module()
    model.a = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    model.b = nn.Parameter(torch.arange(4.0).to(torch.bfloat16))
    model.c = nn.Parameter(torch.arange(3.0, dtype=torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with WholeTracker(model, optimizer, every=1) as tracker:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    found = row_of(tracker.trace.records, 1, "model", "model")
    after = np.concatenate([np.arange(6.0) - 1, np.arange(4.0) - 1, np.arange(3.0) - 1])
    assert_close(
        found, {"norm": np.linalg.norm(after), "step_size": math.sqrt(13), "gradient_norm": math.sqrt(13)}
    )
    assert accumulated(*np.full((3, 1, 1), found["growth"]))["total_growth"][0, 0] == found["total_growth"]


VIEWS = (
    "detach",
    "view",
    "slice",
    "select",
    "unsqueeze",
    "split",
    "alias",
)  # which start nothing on a device


class Counted(TorchDispatchMode):
    """Counts operations that start work on a device, and those that wait for it to send values to the host."""

    def __init__(self):
        super().__init__()
        self.operations, self.waits = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func.overloadpacket)
        self.operations += name.removeprefix("aten.") not in VIEWS
        if any(
            word in name for word in ("nonzero", "_local_scalar_dense", "item", "is_nonzero", "masked_select")
        ):
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("state", [False, True])
def test_operations_and_transfers_of_a_step_on_a_gpu(state, monkeypatch):
    """Sums stay on the device, and one transfer brings them to the host; few operations for each tensor."""
    monkeypatch.setattr(sums, "SIZES", {})  # so the CPU is treated as any other device
    monkeypatch.setattr(sums, "KERNEL_VALUES", 10**12)
    sizes = [*([3] * 100), *([2**16 + 1] * 20)]
    model = nn.ParameterList([nn.Parameter(torch.randn(n)) for n in sizes])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    transfers, plain = [], torch.Tensor.cpu
    with WholeTracker(model, optimizer, every=1, optimizer_state=state, warn=False) as tracker:
        for _ in range(2):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
        (before,) = optimizer._optimizer_step_pre_hooks.values()
        (after,) = optimizer._optimizer_step_post_hooks.values()
        monkeypatch.setattr(torch.Tensor, "cpu", lambda t: transfers.append(t.shape) or plain(t))
        with Counted() as counted:
            before(optimizer, (), {})
            after(optimizer, (), {})
        assert tracker.trace.records.distinct("step") == [0, 1, 2, 3]
    assert counted.waits == []
    assert len(transfers) == 1
    assert counted.operations < (10 if state else 7) * len(sizes), counted.operations


def test_values_that_are_not_finite_on_a_gpu(monkeypatch):
    """They are counted without waiting for the device."""
    monkeypatch.setattr(sums, "SIZES", {})
    monkeypatch.setattr(sums, "OTHER_SIZES", sums.Sizes(10, 1000, looks=False))
    b = [torch.randn(n) for n in (2500, 0, 1, 1000, 7)]
    b[3][7], b[3][8], b[4][0], b[0][2400] = math.inf, math.nan, -math.inf, math.inf
    r = [x + torch.randn(len(x)) for x in b]
    with Counted() as counted:
        found = sums.by_torch([b, r])
    assert counted.waits == []
    np.testing.assert_allclose(found.numpy(), sums.by_kernel([b, r]), rtol=1e-12)
    np.testing.assert_allclose(
        sums.plain_sums([b[1], b[2], r[0]]), [x.double().sum().item() for x in (b[1], b[2], r[0])]
    )


class NoFloat64(TorchDispatchMode):
    """As on a device without float64: only what was copied to the CPU becomes it."""

    def __init__(self):
        super().__init__()
        self.on_cpu = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        values = None
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.float64:
            values = args[0]
        elif func is torch.ops.aten.copy_.default and args[0].dtype is torch.float64:
            values = args[1]
        inside = values is not None and values.dim() > 0  # not the largest value of a piece
        if inside and not any(values.data_ptr() == copy.data_ptr() for copy in self.on_cpu):
            raise TypeError("Cannot convert to float64: the device has none")
        return func(*args, **kwargs)


def test_a_device_without_float64(monkeypatch):
    """The sums are those of the CPU, and nothing is converted before it gets there."""
    tensors = [[torch.arange(1.0, 5000.0)], [torch.ones(4999)]]
    wanted = sums.tensor_sums(*tensors)
    with pytest.raises(TypeError, match="has none"), NoFloat64():
        sums.by_torch(tensors)
    monkeypatch.setattr(sums, "supports_float64", lambda _: False)
    with NoFloat64() as mode:
        monkeypatch.setattr(torch.Tensor, "cpu", lambda t: mode.on_cpu.append(t.clone()) or mode.on_cpu[-1])
        found = sums._on_device(torch.device("mps"), tensors)
    assert len(mode.on_cpu) == 2
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "closure"])
def test_the_state_of_the_optimizer(kind):
    """cos(gradient, weights) and norms of Adam's moments, against the obvious computation."""
    model = tiny()
    parameters = dict(model.named_parameters())
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "sgd"
        else torch.optim.AdamW(model.parameters(), lr=0.1)
    )
    with WholeTracker(model, optimizer, every=1, optimizer_state=True) as tracker:
        for step in (1, 2):
            before = {name: values(p, p) for name, p in parameters.items()}
            optimizer.zero_grad()
            if kind == "closure":
                optimizer.step(lambda step=step: backward(model, step))
            else:
                backward(model, step)
                optimizer.step()
    records = tracker.trace.records
    for level, name in (("model", "model"), ("layer", "layer.1"), ("tensor", "embedding.weight")):
        chosen = members(model, level, name)
        theta = np.concatenate([before[n] for n in chosen])
        g = np.concatenate([values(parameters[n].grad, parameters[n]) for n in chosen])
        wanted = {"gradient_alignment": theta @ g / np.linalg.norm(theta) / np.linalg.norm(g)}
        if kind != "sgd":
            states = [optimizer.state[parameters[n]] for n in chosen if parameters[n].requires_grad]
            m = np.concatenate([values(state["exp_avg"], state["exp_avg"]) for state in states])
            v = np.concatenate([values(state["exp_avg_sq"], state["exp_avg_sq"]) for state in states])
            first, second = np.linalg.norm(m), np.sqrt(v.sum())
            wanted |= {
                "first_moment_norm": first,
                "second_moment_norm": second,
                "moment_ratio": first / second,
            }
        found = row_of(records, 2, level, name)
        assert_close(found, wanted)
        assert math.isfinite(found.get("first_moment_norm", math.nan)) == (kind != "sgd")


def test_a_step_in_a_cuda_graph_is_refused(monkeypatch):
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1) as tracker:
        backward(model, 1)
        optimizer.step()
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        before = [p.clone() for p in model.parameters()]
        with pytest.raises(InputError, match="CUDA graph"):
            optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    optimizer.step()
    assert tracker.step == 1


def test_out_of_memory_while_gradients_are_summed_does_not_end_training(monkeypatch):
    from normgrowth.tracking.measuring import measured_step

    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    real = measured_step.local_gradient

    def fails(*_):
        raise torch.OutOfMemoryError("no memory for a gradient")

    with WholeTracker(model, optimizer, every=1) as tracker:
        monkeypatch.setattr(measured_step, "local_gradient", fails)
        backward(model, 1)
        with pytest.warns(SeriesWarning, match="step 1: out of memory"):
            optimizer.step()
        monkeypatch.setattr(measured_step, "local_gradient", real)
        backward(model, 2)
        optimizer.step()
    assert math.isnan(row_of(tracker.trace.records, 1, "model", "model")["gradient_norm"])
    assert row_of(tracker.trace.records, 2, "model", "model")["gradient_norm"] > 0
