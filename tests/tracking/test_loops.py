"""Trackers in training loops of other libraries: their numbers are those of the weights, or one line refuses."""

import numpy as np
import pytest
import torch
from tracking.tiny_training import WholeTracker, backward, tiny

import normgrowth as ng
from normgrowth import InputError, NormTracker

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")


def norm_of(model):
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).norm().item()


def norms_of(tracker):
    steps, norms = tracker.trace.records.series("norm")
    return dict(zip(steps.tolist(), norms.tolist(), strict=True))


def test_the_loop_of_accelerate():
    """Gradients are accumulated over two batches: half of the calls step."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    wanted = {0: norm_of(model)}
    with WholeTracker(model, optimizer, every=1) as tracker:
        for batch in range(6):
            with accelerator.accumulate(model):
                tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(batch))
                loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                wanted[tracker.step] = norm_of(model)
    assert norms_of(tracker) == pytest.approx(wanted, rel=1e-12)
    assert list(wanted) == [0, 1, 2, 3]


def test_a_gradient_scaler_that_skips_a_step():
    """The gradients that are recorded are unscaled; a skipped step is none of the optimizer's."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    gradients = []
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in range(4):
            optimizer.zero_grad()
            tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(step))
            scaler.scale(
                torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            ).backward()
            if step == 1:
                model.layers[0].linear1.weight.grad[0, 0] = torch.inf
            scale = scaler.get_scale()
            if step != 1:
                gradients.append(
                    torch.cat([p.grad.flatten() / scale for p in model.parameters() if p.grad is not None])
                )
            scaler.step(optimizer)
            scaler.update()
    found = tracker.trace.records.series("gradient_norm")[1]
    assert found.tolist() == pytest.approx([g.double().norm().item() for g in gradients], rel=1e-6)


def test_averaged_weights():
    """The tracker follows the model that is trained; the average of `swa_utils` is another model, and refused."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
    wanted = {0: norm_of(model)}
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in range(1, 4):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            average.update_parameters(model)
            schedule.step()
            wanted[step] = norm_of(model)
    assert norms_of(tracker) == pytest.approx(wanted, rel=1e-12)
    assert tracker.trace.records.series("learning_rate")[1].tolist() == pytest.approx([0.1, 0.075, 0.05])
    with pytest.raises(InputError, match="parameters that are not in the model"):
        NormTracker(average, optimizer)


def test_muon_of_torch():
    """Its decay is decoupled, so the step is split in two."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = tiny()
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    optimizer = torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1)
    wanted = {0: norm_of(model)}
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in (1, 2):
            optimizer.zero_grad()
            backward(model, step)
            before = torch.cat([p.detach().double().flatten() for p in matrices]).norm().item()
            optimizer.step()
            wanted[step] = norm_of(model)
    assert norms_of(tracker) == pytest.approx(wanted, rel=1e-12)
    assert tracker.trace.records.series("decay_step")[1][-1] == pytest.approx(1e-2 * 0.1 * before)


@pytest.mark.filterwarnings("ignore::normgrowth.SeriesWarning")
def test_two_optimizers_on_one_model():
    """Each tracker sees the steps of its own optimizer: it says so, and the sums since the start end there."""
    model = tiny()
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    mine = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in mine]
    first, second = torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(rest, lr=1e-2)
    with WholeTracker(model, first, every=1) as one, WholeTracker(model, second, every=1) as other:
        start = norm_of(model)
        for step in (1, 2, 3):
            first.zero_grad()
            second.zero_grad()
            backward(model, step)
            first.step()
            if step == 1:
                after_first = norm_of(model)
            second.step()
    for tracker in (one, other):
        assert not tracker.ok
        (warning,) = (warning for warning in tracker.warnings if warning.kind == "elsewhere")
        assert warning.step == 2
        assert warning.value > warning.threshold
        steps = tracker.trace.records.series("total_growth")[0]
        assert steps.tolist() == [1]
        assert tracker.trace.records.distinct("step") == [0, 1, 2, 3]
        assert norms_of(tracker)[0] == start or tracker is other
    assert one.trace.records.series("total_growth")[1][0] == pytest.approx(
        after_first**2 - start**2, rel=1e-5
    )


def test_one_optimizer_has_no_such_warning():
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in (1, 2, 3):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    assert "elsewhere" not in {warning.kind for warning in tracker.warnings}
    assert tracker.trace.records.series("total_growth")[0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("folder", [False, True])
def test_settings_that_change_during_a_run(folder, tmp_path):
    out = tmp_path / "run" if folder else None
    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def train(steps):
        for step in steps:
            if step == 3:
                optimizer.param_groups[0].update(weight_decay=0.5, betas=(0.5, 0.9))
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()

    with (
        pytest.warns(ng.SeriesWarning, match="weight_decay of group 0 is 0.5"),
        WholeTracker(model, optimizer, every=1, out=out, run="run") as tracker,
    ):
        train(range(1, 6))
    trace = ng.load(out) if out else tracker.trace
    assert trace.steps == (0, 1, 2, 3, 4, 5)
    assert [group.weight_decay for group in trace.optimizer_groups] == [0.5]
    assert trace.optimizer_groups[0].betas == (0.5, 0.9)
    assert len(trace.optimizer_changes) == 2
    assert all("from step 3 on" in change for change in trace.optimizer_changes)
    assert trace.records.series("total_growth")[0].tolist() == [1, 2, 3, 4, 5]
    found = ng.dynamics(trace)
    assert (found.weight_decay, found.optimizer.betas) == (0.5, (0.5, 0.9))
    assert any("weight_decay of group 0 is 0.5 (before: 0.1)" in note for note in found.notes)
    if out:
        with WholeTracker(model, optimizer, every=1, out=out, resume_step=5):
            train([6])
        assert len(ng.load(out).optimizer_changes) == 2


@pytest.mark.filterwarnings("ignore::normgrowth.SeriesWarning")
def test_settings_that_change_at_every_step():
    """As momentum under a cyclic schedule: the first changes are recorded, not thousands."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in range(1, 31):
            optimizer.param_groups[0]["momentum"] = 0.5 + step / 100
            backward(model, step)
            optimizer.step()
    assert len(tracker.trace.optimizer_changes) == 10
    assert tracker.trace.optimizer_changes[-1].endswith("later changes are not recorded")


def test_schedule_free():
    schedulefree = pytest.importorskip("schedulefree")
    model = tiny()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = schedulefree.AdamWScheduleFree(parameters, lr=1e-2, warmup_steps=4)
    optimizer.train()
    wanted = {0: norm_of(model)}
    with WholeTracker(model, optimizer, every=1) as tracker:
        for step in (1, 2, 3):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            wanted[step] = norm_of(model)
    assert norms_of(tracker) == pytest.approx(wanted, rel=1e-12)
    rates = tracker.trace.records.series("learning_rate")[1]
    assert np.diff(rates).min() > 0, "it warms up"


def test_deepspeed_is_refused():
    """By the class of its optimizer, which is not initialized here: that takes minutes on a CPU."""
    zero = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    optimizer = zero.DeepSpeedZeroOptimizer.__new__(zero.DeepSpeedZeroOptimizer)
    with pytest.raises(InputError, match="DeepSpeed's ZeRO updates flat partitions"):
        NormTracker(tiny(), optimizer)


def test_gradients_before_clipping(tmp_path):
    """The recorded gradients are clipped; divided by the coefficient, they are those before. Not every step clips."""
    model, norms, most = tiny(), {}, 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1, out=tmp_path / "run") as tracker:
        for step in range(1, 5):
            optimizer.zero_grad()
            backward(model, step)
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(40.0 if step % 2 else 0.01)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), most)
            norms[step] = norm.item()
            if step < 4:  # not recorded for the last step
                tracker.record_clipping(norm if step == 1 else norm.item(), most)
            optimizer.step()
    records = tracker.trace.records
    steps, found = records.series("clip_coefficient")
    assert steps.tolist() == [1, 2, 3]
    assert found.tolist() == pytest.approx([most / norms[1], 1.0, most / norms[3]], rel=1e-5)
    assert norms[2] < most < min(norms[1], norms[3])
    gradients = records.series("gradient_norm")[1][:3]
    assert (gradients / found).tolist() == pytest.approx([norms[step] for step in (1, 2, 3)], rel=1e-5)
