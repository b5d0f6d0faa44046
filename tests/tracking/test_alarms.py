"""Warnings of a tracker: each one raised by a run that deserves it, and none by one that does not."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from tiny_configs import tiny_config
from torch import nn
from tracking.tiny_training import WholeTracker, backward, tiny

from normgrowth import NormTracker
from normgrowth.errors import SeriesWarning
from normgrowth.network.models.encoders import EncoderConfig, LanguageModel
from normgrowth.tracking.run_warnings import LOGIT

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")


class Blocks(nn.Module):
    def __init__(self, count=2, size=16):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size, bias=False) for _ in range(count)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def followed(model, optimizer, steps, step, **options):
    """What the tracker said during so many steps."""
    with (
        warnings.catch_warnings(record=True) as said,
        NormTracker(model, optimizer, every=1, **options) as tracker,
    ):
        warnings.simplefilter("always", SeriesWarning)
        for i in range(steps):
            optimizer.zero_grad()
            step(i)
            optimizer.step()
    lines = [str(w.message) for w in said if issubclass(w.category, SeriesWarning)]
    assert lines == list(tracker.trace.notes)
    return lines


def loss_of(model):
    x, y = torch.randn(8, 16), torch.randn(8, 16)

    def step(_):
        (model(x.to(next(model.parameters()).dtype)) - y).square().mean().backward()

    return step


def test_a_healthy_run_is_told_nothing():
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    assert followed(model, optimizer, 60, loss_of(model)) == []


def test_the_first_tensor_with_nan_is_named_once():
    model = Blocks()

    def step(i):
        loss_of(model)(i)
        if i == 3:
            model.layers[1].weight.grad[2, 2] = torch.nan

    lines = followed(model, torch.optim.SGD(model.parameters(), lr=0.1), 6, step)
    assert lines[0] == (
        "step 4: NaN or infinite weights in layers.1.weight: go back to a checkpoint before this step"
    )
    assert lines[1] == "step 4: NaN or infinite gradients in layers.1.weight"
    assert sum("layers.1.weight" in line for line in lines) == 2
    assert any(line.startswith("step 5") and "layers.0.weight" in line for line in lines), "it spreads"


def test_steps_below_the_resolution_of_float32():
    model = Blocks()
    lines = followed(model, torch.optim.SGD(model.parameters(), lr=1e-9), 3, loss_of(model))
    assert len(lines) == 1
    assert "below the resolution of float32" in lines[0]
    assert lines[0].endswith("its gradient or learning rate is almost zero")


def test_the_bias_of_keys_has_no_gradient_and_nobody_is_told():
    """It adds the same to all scores of a query: what its gradient holds is rounding."""
    config = EncoderConfig(vocabulary=20, max_length=8, width=16, layers=2, heads=2, feedforward=16)
    model = LanguageModel(config)
    for block in model.encoder.blocks:
        nn.init.normal_(block.attention.key.bias)
    ids = torch.randint(20, (4, 8))

    def step(_):
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()

    assert followed(model, torch.optim.SGD(model.parameters(), lr=0.01), 5, step) == []
    assert 0 < model.encoder.blocks[0].attention.key.bias.grad.norm() < 1e-6


def test_steps_below_the_resolution_of_bfloat16():
    model = Blocks().to(torch.bfloat16)
    lines = followed(model, torch.optim.SGD(model.parameters(), lr=1e-3), 3, loss_of(model))
    assert len(lines) == 1
    assert "the step of layers.0.weight, layers.1.weight is" in lines[0]
    assert "below the resolution of bfloat16 (7.8e-03)" in lines[0]
    model = Blocks()  # the same steps in float32 are well above
    assert followed(model, torch.optim.SGD(model.parameters(), lr=1e-3), 3, loss_of(model)) == []


def test_a_norm_that_runs_away():
    model = Blocks()

    def step(i):
        for p in model.layers[1].parameters():
            p.grad = -p.detach() * 0.01 * i  # growth that grows
        model.layers[0].weight.grad = torch.zeros(16, 16)

    lines = followed(model, torch.optim.SGD(model.parameters(), lr=1.0), 40, step)
    assert len(lines) == 1
    assert "the norm of layers.1 grew" in lines[0] or "the norm of layer.1 grew" in lines[0]


def test_growth_that_slows_down_is_no_runaway():
    model = Blocks()

    def step(i):
        for p in model.parameters():
            p.grad = -p.detach() * 0.3 / (1 + i)

    assert followed(model, torch.optim.SGD(model.parameters(), lr=1.0), 40, step) == []


@pytest.mark.parametrize("frozen", [False, True])
def test_a_rotation_far_from_equilibrium(frozen):
    """Random gradients turn the weights as predicted; a gradient that never changes does not turn them at all."""
    model = Blocks(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=1.0)
    fixed = torch.randn(16, 16)

    def step(_):
        model.layers[0].weight.grad = fixed.clone() if frozen else torch.randn(16, 16)

    lines = followed(model, optimizer, 400, step)
    assert bool(lines) == frozen
    if frozen:
        assert "rotates by" in lines[0]
        assert int(lines[0].split()[1].rstrip(":")) >= 3 / (0.02 * 1.0)


# --- logits ---------------------------------------------------------------------------------------------------
def reference(model, ids):
    """The largest score that no mask hides, by hand from hooks on queries and keys of BERT."""
    seen = {}

    def keep(name):
        return lambda module, inputs, output: seen.__setitem__(name, output.detach())

    hooks = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if name.endswith((".query", ".key"))
    ]
    logits = model(**ids).logits.detach()
    for hook in hooks:
        hook.remove()
    largest = 0.0
    for name in [name for name in seen if name.endswith("query")]:
        q, k = (
            seen[n].unflatten(-1, (4, -1)).transpose(1, 2) for n in (name, name.removesuffix("query") + "key")
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(ids["attention_mask"][:, None, None] == 0, 0)
        largest = max(largest, scores.abs().max().item())
    return largest, logits.double().square().mean().sqrt().item(), logits.abs().max().item()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_are_those_of_a_pass_by_hand(attention):
    model = transformers.BertForMaskedLM._from_config(tiny_config("bert"), attn_implementation=attention)
    model.eval()  # no dropout: the same pass again
    ids = {"input_ids": torch.randint(5, 99, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.long)}
    ids["attention_mask"][1, 5:] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = reference(model, ids)
    with NormTracker(model, optimizer, every=2, logits=True) as tracker:
        for _ in range(2):
            with torch.no_grad():
                model(input_ids=torch.full((1, 60), 7))  # an evaluation is no part of a step
            optimizer.zero_grad()
            F.cross_entropy(model(**ids).logits.flatten(0, 1), ids["input_ids"].flatten()).backward()
            weights = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
        found = tracker.trace.records
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)
    expected = reference(model, ids)  # with the weights of the second step
    for quantity, value in zip(("attention_logit", "logit_rms", "logit_largest"), expected, strict=True):
        steps, values = found.series(quantity)
        assert steps.tolist() == [2]
        assert values[0] == pytest.approx(value, rel=1e-5)


def test_causal_and_grouped_attention():
    """A model that calls fused attention with is_causal and enable_gqa, against scores by hand."""

    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.maps = nn.ModuleList([nn.Linear(8, n, bias=False) for n in (16, 8, 8)])

        def forward(self, x):
            q, k, v = (m(x).unflatten(-1, (-1, 4)).transpose(1, 2) for m in self.maps)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.7)

    model, x = Grouped(), torch.randn(2, 5, 8)
    q, k = (m(x).unflatten(-1, (-1, 4)).transpose(1, 2) for m in model.maps[:2])
    scores = 0.7 * q @ k.repeat_interleave(2, 1).transpose(-1, -2)
    expected = scores.tril().abs().max().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with NormTracker(model, optimizer, every=1, logits=True) as tracker:
        model(x).sum().backward()
        optimizer.step()
        assert tracker.trace.records.series("attention_logit")[1][0] == pytest.approx(expected, rel=1e-6)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_attention_logit_past_the_limit():
    model = transformers.BertForMaskedLM(tiny_config("bert"))
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.query.weight.mul_(4000)
    ids = torch.randint(5, 99, (2, 7))

    def step(_):
        model(input_ids=ids, labels=ids).loss.backward()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    lines = followed(model, optimizer, 2, step, logits=True)
    assert sum(f"exceeds {LOGIT:g}" in line for line in lines) == 1
    assert followed(model, optimizer, 2, step, logits=True, warn=False) == []


def test_losses_are_the_same_to_the_bit_with_logits():
    def losses(tracked):
        torch.manual_seed(0)
        model = transformers.BertForMaskedLM(tiny_config("bert"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        tracker = NormTracker(model, optimizer, every=1, logits=True) if tracked else None
        found = []
        for _ in range(5):
            ids = torch.randint(5, 99, (2, 7))
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        if tracker:
            tracker.close()
        return found

    assert losses(True) == losses(False)


def test_a_loop_can_stop_by_itself():
    """`ok` and `warnings`: which tensors, the value and the threshold that it passed."""
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1) as tracker:
        backward(model, 1)
        optimizer.step()
        assert tracker.ok
        assert tracker.warnings == ()
        backward(model, 2)
        model.layers[0].linear1.weight.grad[0, 0] = torch.inf
        with pytest.warns(SeriesWarning):
            optimizer.step()
    assert not tracker.ok
    kinds = {warning.kind: warning for warning in tracker.warnings}
    assert {"weights", "gradient"} <= kinds.keys()
    found = kinds["weights"]
    assert (found.step, found.names, found.value, found.threshold) == (
        2,
        ("layers.0.linear1.weight",),
        1.0,
        0.0,
    )
    assert str(found).startswith("step 2: NaN or infinite weights in layers.0.linear1.weight")
    assert [str(warning) for warning in tracker.warnings] == list(tracker.trace.notes)
