"""Scores before the softmax, and outputs: what is seen of `nn.MultiheadAttention`, of masks, of losses, of NaN."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tracking.tiny_training import WholeTracker

from normgrowth.errors import SeriesWarning

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")

FUTURE = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


class Heads(nn.Module):
    def __init__(self, need_weights, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        self.head = nn.Linear(8, 3)
        self.need_weights = need_weights

    def forward(self, x, **masks):
        x, _ = self.attention(x, x, x, need_weights=self.need_weights, **masks)
        return self.head(x)


def largest_score(attention, x, hidden):
    """By hand in float64. hidden: (rows, queries, keys)."""
    with torch.no_grad():
        weight, bias = attention.in_proj_weight.double(), attention.in_proj_bias.double()
        q, k, _ = (x.double() @ weight.T + bias).chunk(3, -1)
        q, k = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k))
        scores = q @ k.transpose(-1, -2) / 2.0
        return scores.masked_fill(hidden[:, None], 0.0).abs().max().item()


def steps_of(model, tracked, every=1, steps=4, call=None, **masks):
    """Losses, and the records if there are any."""
    call = model if call is None else call
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    tracker = WholeTracker(call, optimizer, every=every, logits=True) if tracked else None
    losses = []
    for step in range(steps):
        x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = call(x, **masks).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if tracker:
        tracker.close()
    return losses, tracker and tracker.trace.records


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "masks", [{}, {"attn_mask": FUTURE}, {"attn_mask": FUTURE, "key_padding_mask": PADDING}]
)
def test_multihead_attention_is_seen(need_weights, masks):
    model = Heads(need_weights)
    hidden = torch.zeros(2, 5, 5, dtype=torch.bool)
    if "attn_mask" in masks:
        hidden = hidden | masks["attn_mask"]
    if "key_padding_mask" in masks:
        hidden = hidden | masks["key_padding_mask"][:, None]
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    wanted = largest_score(model.attention, x, hidden)
    _, records = steps_of(model, True, steps=1, **masks)
    assert records.series("attention_logit")[1].tolist() == [pytest.approx(wanted, rel=1e-5)]
    assert wanted > 1e-2


@pytest.mark.parametrize("need_weights", [False, True])
def test_multihead_attention_with_dropout_trains_to_the_same_bits(need_weights):
    found = []
    for tracked in (False, True):
        torch.manual_seed(0)
        found.append(steps_of(Heads(need_weights, dropout=0.3), tracked, attn_mask=FUTURE)[0])
    assert found[0] == found[1]


def test_a_frozen_encoder_keeps_its_fast_path():
    """Under a mode torch leaves it, and rounds otherwise."""

    def model():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)
        return nn.Sequential(encoder, nn.Linear(8, 3))

    plain, _ = steps_of(model(), False, steps=8)
    seen, records = steps_of(model(), True, steps=8)
    assert seen == plain
    assert len(records.series("logit_rms")[0]) == 8
    assert "attention_logit" not in records.distinct("quantity")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_model_runs_as_before():
    losses = []
    for tracked in (False, True):
        torch.manual_seed(0)
        model = Heads(False)
        compiled = torch.compile(model, backend="aot_eager")
        found, records = steps_of(model, tracked, every=2, call=compiled, attn_mask=FUTURE)
        losses.append(found)
        torch._dynamo.reset()
    assert losses[0] == losses[1]
    assert records.series("logit_rms")[0].tolist() == [2, 4]


class Masked(nn.Module):
    """A mask as tutorials write it."""

    def __init__(self, fill):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.fill = fill

    def forward(self, x):
        self.scores = (self.query(x) @ x.transpose(-1, -2))[:, None]
        return self.scores.masked_fill(FUTURE, self.fill).softmax(-1) @ x[:, None]


@pytest.mark.parametrize("fill", [-1e9, -1e20, torch.finfo(torch.float32).min, -math.inf])
def test_what_a_mask_hides_is_no_score(fill):
    model = Masked(fill)
    _, records = steps_of(model, True, steps=1)
    wanted = model.scores.masked_fill(FUTURE, 0.0).abs().max().item()
    assert records.series("attention_logit")[1].tolist() == [pytest.approx(wanted, rel=1e-6)]


def test_a_loss_is_no_logit():
    class Loss(Heads):
        def forward(self, x):
            return super().forward(x).square().mean()

    _, records = steps_of(Loss(False), True)
    assert "attention_logit" in records.distinct("quantity")
    assert "logit_rms" not in records.distinct("quantity")


def test_a_model_that_calls_itself_is_one_pass():
    class Twice(Heads):
        def forward(self, x, again=True):
            if again:
                self(x, again=False)
            return super().forward(2.0 * x if again else x)

    model = Twice(False)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    wanted = largest_score(model.attention, 2.0 * x, torch.zeros(2, 5, 5, dtype=torch.bool))
    output = model(x).detach().double()
    _, records = steps_of(model, True, steps=1)
    assert records.series("attention_logit")[1].tolist() == [pytest.approx(wanted, rel=1e-5)]
    assert records.series("logit_rms")[1].tolist() == [
        pytest.approx(output.square().mean().sqrt().item(), rel=1e-6)
    ]


def test_outputs_of_nan_are_not_taken_for_a_model_that_is_not_called():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with WholeTracker(model, optimizer, every=1, logits=True) as tracker:
        model(torch.full((2, 8), math.nan)).sum().backward()
        with pytest.warns(SeriesWarning, match="NaN or infinite"):
            optimizer.step()
    assert not any("no logits" in note for note in tracker.trace.notes)


def test_a_copy_of_multihead_attention_is_not_watched():
    model = Heads(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 5, 8)
    with WholeTracker(model, optimizer, every=1, logits=True) as tracker:
        copy.deepcopy(model)(100 * x)
        model(x).sum().backward()
        wanted = largest_score(model.attention, x, torch.zeros(2, 5, 5, dtype=torch.bool))
        optimizer.step()
    assert tracker.trace.records.series("attention_logit")[1].tolist() == [pytest.approx(wanted, rel=1e-5)]
    assert (
        F.multi_head_attention_forward.__globals__["has_torch_function"] is torch.overrides.has_torch_function
    )
