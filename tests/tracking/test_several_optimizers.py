"""One tracker for several optimizers: a training step is one call of each, with the numbers of all of them."""

import numpy as np
import pandas as pd
import pytest
import torch
from tracking.tiny_training import WholeTracker, angle_between, backward, row_of, tiny, values

from normgrowth import InputError, SeriesWarning

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")


def split(model):
    """Matrices, and the other trained parameters."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim == 1]


def weights(model):
    return {name: p.detach().double().flatten().numpy().copy() for name, p in model.named_parameters()}


def joined(of_tensors):
    return np.concatenate(list(of_tensors.values()))


def train(model, optimizers, steps, *, seen=None, skip=(), **options):
    """Train; returns the trace. skip: pairs of a step and the optimizer that is not called there."""
    with WholeTracker(model, optimizers, every=1, **options) as tracker:
        for step in range(1, steps + 1):
            model.zero_grad()
            backward(model, step)
            before = weights(model)
            gradients = {n: values(p.grad, p) for n, p in model.named_parameters()}
            for i, optimizer in enumerate(optimizers):
                if (step, i) not in skip:
                    optimizer.step()
            if seen is not None:
                seen[step] = before, weights(model), gradients
    return tracker.trace


def test_muon_and_adamw():
    model, seen = tiny(), {}
    matrices, vectors = split(model)
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW(vectors, lr=1e-3, weight_decay=0.0)
    trace = train(model, [muon, adamw], 4, seen=seen, optimizer_state=True)
    assert trace.steps == (0, 1, 2, 3, 4)
    assert trace.optimizer == "Muon and AdamW"
    assert [group.parameters for group in trace.optimizer_groups] == [
        sum(p.numel() for p in part) for part in (matrices, vectors)
    ]
    assert not trace.notes
    growth = 0.0
    for step, (before, after, gradients) in seen.items():
        whole = row_of(trace.records, step, "model", "model")
        a, b, g = joined(before), joined(after), joined(gradients)
        assert whole["norm"] == pytest.approx(np.linalg.norm(b), rel=1e-12)
        assert whole["step_size"] == pytest.approx(np.linalg.norm(b - a), rel=1e-12)
        assert whole["angle"] == pytest.approx(angle_between(a, b), rel=1e-9)
        assert whole["gradient_norm"] == pytest.approx(np.linalg.norm(g), rel=1e-12)
        assert whole["gradient_alignment"] == pytest.approx(
            g @ a / np.linalg.norm(g) / np.linalg.norm(a), rel=1e-9
        )
        growth += b @ b - a @ a
        assert whole["total_growth"] == pytest.approx(growth, rel=1e-9)
        for name, p in model.named_parameters():
            row = row_of(trace.records, step, "tensor", name)
            assert row["step_size"] == pytest.approx(np.linalg.norm(after[name] - before[name]), rel=1e-12)
            if p.requires_grad:
                assert row["learning_rate"] == (0.02 if p.ndim > 1 else 1e-3)
                assert row["decay_step"] == pytest.approx(
                    0.02 * 0.1 * np.linalg.norm(before[name]) if p.ndim > 1 else 0.0, rel=1e-9
                )


def test_two_optimizers_are_recorded_as_one_with_two_groups():
    one, two = tiny(), tiny()
    options = {"lr": 1e-3, "weight_decay": 0.1}
    alone = train(one, [torch.optim.AdamW([{"params": part} for part in split(one)], **options)], 5)
    parted = train(two, [torch.optim.AdamW(part, **options) for part in split(two)], 5)
    pd.testing.assert_frame_equal(parted.to_pandas(), alone.to_pandas(), rtol=1e-14)
    assert (parted.optimizer, parted.optimizer_groups) == (alone.optimizer, alone.optimizer_groups)


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("at", [2, 4])
def test_an_optimizer_that_is_not_called_in_a_step(skipped, at):
    """At the last step, too: it is then recorded when the tracker is closed."""
    model, seen = tiny(), {}
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in split(model)]
    trace = train(model, optimizers, 4, seen=seen, skip={(at, skipped)})
    assert trace.steps == (0, 1, 2, 3, 4)
    assert not trace.notes
    for step, (before, after, _) in seen.items():
        whole = row_of(trace.records, step, "model", "model")
        assert whole["norm"] == pytest.approx(np.linalg.norm(joined(after)), rel=1e-12)
        assert whole["step_size"] == pytest.approx(np.linalg.norm(joined(after) - joined(before)), rel=1e-12)
    idle = [n for n, p in model.named_parameters() if any(p is q for q in split(model)[skipped])]
    assert {row_of(trace.records, at, "tensor", name)["step_size"] for name in idle} == {0.0}


def test_a_gradient_scaler_that_skips_one_of_two():
    model = tiny()
    optimizers = [torch.optim.SGD(part, lr=1e-2) for part in split(model)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    norms = {}
    with WholeTracker(model, optimizers, every=1) as tracker:
        for step in range(1, 5):
            model.zero_grad()
            tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
            loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            scaler.scale(loss).backward()
            if step == 2:
                split(model)[1][0].grad[0] = torch.inf
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            norms[step] = np.linalg.norm(joined(weights(model)))
    steps, found = tracker.trace.records.series("norm")
    assert dict(zip(steps[1:].tolist(), found[1:].tolist(), strict=True)) == pytest.approx(norms, rel=1e-12)
    assert tracker.ok


def test_weights_that_change_between_the_steps_are_still_noticed():
    model = tiny()
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in split(model)]
    with WholeTracker(model, optimizers, every=1) as tracker:
        for step in range(1, 3):
            backward(model, step)
            optimizers[0].step()
            optimizers[1].step()
            if step == 2:
                with torch.no_grad():
                    model.layers[0].linear1.weight.mul_(1.1)
        optimizers[0].step()
        with pytest.warns(SeriesWarning, match=r"layers.0.linear1.weight changed since the last step"):
            optimizers[1].step()
    assert [warning.kind for warning in tracker.warnings] == ["elsewhere"]


def test_every_second_step(tmp_path):
    model, seen = tiny(), {}
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in split(model)]
    with WholeTracker(model, optimizers, every=2, out=tmp_path / "run") as tracker:
        for step in range(1, 6):
            backward(model, step)
            before = joined(weights(model))
            for optimizer in optimizers:
                optimizer.step()
            seen[step] = np.linalg.norm(joined(weights(model)) - before)
    steps, found = tracker.trace.records.series("step_size")
    assert dict(zip(steps.tolist(), found.tolist(), strict=True)) == pytest.approx(
        {2: seen[2], 4: seen[4]}, rel=1e-12
    )


def test_another_order_of_calls_than_in_the_list_is_noticed():
    model = tiny()
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in split(model)]
    with WholeTracker(model, optimizers, every=1):
        backward(model, 1)
        optimizers[1].step()
        with pytest.warns(SeriesWarning, match="SGD was not called; if it was called after the others"):
            optimizers[0].step()


def test_what_is_no_list_of_optimizers_is_refused():
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for given in ([], [optimizer, optimizer], ["adam"], "adam"):
        with pytest.raises(InputError, match="optimizer must be"):
            WholeTracker(model, given)
    other = torch.optim.SGD(tiny(1).parameters(), lr=0.1)
    with pytest.raises(InputError, match="not in the model"):
        WholeTracker(model, [optimizer, other])
