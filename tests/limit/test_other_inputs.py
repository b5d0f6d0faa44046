"""Ways to call a network beside the usual one: padding on the left, a cache fed back, experts, group norm."""

from collections import deque

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from limit.architectures import Double
from tiny_configs import tiny_config
from torch import nn

import normgrowth
from normgrowth import saturated, scaled_weights
from normgrowth.network.models.load import generic
from normgrowth.paper.stages.table1_networks import spread_norms

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(name, config=None):
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config or tiny_config(name), attn_implementation="eager")
    model = model.double().eval()
    generic(model)
    return model


def cosines(a, b):
    return torch.cosine_similarity(a, b, dim=-1)


def agree(model, run, real=None, wanted=None):
    """The limit is what the network tends to: 1 − cosine at the best of three scales."""
    wanted = run(saturated(model)) if wanted is None else wanted
    errors = []
    for c in (1e2, 1e4, 1e6):
        with torch.no_grad(), Double(), scaled_weights(model, c):
            apart = 1 - cosines(run(model), wanted)
        errors.append(float((apart if real is None else apart[real]).abs().max()))
    assert min(errors) < 1e-6, errors
    return wanted


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_on_the_left(name):
    """As for generation: rows that begin with padding, and positions that count from the first real token."""
    model = tiny(name)
    ids = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)

    def run(network):
        return network(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state

    wanted = agree(model, run, mask.bool())
    alone = saturated(model)(input_ids=ids[1:, 3:], use_cache=False).last_hidden_state
    assert float((1 - cosines(wanted[1:, 3:], alone)).abs().max()) < 1e-9


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_cache_that_is_fed_back(name):
    """Two calls with past_key_values between them are one call; degrees travel in the cache."""
    model = tiny(name)
    ids = torch.randint(5, 99, (2, 8), generator=torch.Generator().manual_seed(1))
    whole = saturated(model)(input_ids=ids, use_cache=False).last_hidden_state
    limit = saturated(model)
    first = limit(input_ids=ids[:, :5], use_cache=True)
    second = limit(input_ids=ids[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    joined = torch.cat([first.last_hidden_state, second.last_hidden_state], 1)
    assert torch.allclose(joined, whole, rtol=1e-9, atol=1e-12 * float(whole.abs().max()))


def test_experts_in_groups():
    """Mixtral: the router's softmax becomes a choice, each expert a product over its own rows.

    The kernel for that takes no float64, so the scaled network runs its experts one by one.
    """
    config = transformers.MixtralConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=99,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    model = tiny("mixtral", config)
    ids = torch.randint(5, 99, (2, 6), generator=torch.Generator().manual_seed(1))

    def run(network):
        return network(input_ids=ids, use_cache=False).last_hidden_state

    model.set_experts_implementation("grouped_mm")
    grouped = run(saturated(model))
    model.set_experts_implementation("eager")
    agree(model, run, wanted=grouped)


def test_group_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(6, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv1d(8, 4, 1)).double()
    spread_norms(model)
    x = torch.randn(2, 6, 9, dtype=torch.float64)
    agree(model, lambda network: network(x).flatten(1))


# Eager attention adds its mask: a boolean one means nothing to it.
@pytest.mark.parametrize(
    ("form", "attention"),
    [
        ("smallest", "eager"),
        ("infinite", "eager"),
        ("smallest", "sdpa"),
        ("infinite", "sdpa"),
        ("boolean", "sdpa"),
    ],
)
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_custom_mask_of_four_dimensions(name, form, attention):
    """A prefix that sees itself, then causal, and padding at the end of one row: no form of the mask matters."""
    model = tiny(name)
    model.set_attn_implementation(attention)
    ids = torch.randint(5, 99, (2, 7), generator=torch.Generator().manual_seed(1))
    sees = torch.ones(7, 7, dtype=torch.bool).tril()
    sees[:3, :3] = True
    sees = sees.expand(2, 1, 7, 7).clone()
    sees[1, ..., 5:] = False
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, 5:] = False
    lowest = {"smallest": torch.finfo(torch.float64).min, "infinite": -torch.inf}.get(form)
    mask = sees if lowest is None else torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, lowest)
    more = {} if name == "bert" else {"use_cache": False}

    def run(network):
        return network(input_ids=ids, attention_mask=mask, **more).last_hidden_state

    limit = saturated(model)
    wanted = agree(model, run, real, wanted=run(limit))
    assert limit.findings == []
    changed = ids.clone()
    changed[1, 5:] = 7  # padding that nobody sees
    again = saturated(model)(input_ids=changed, attention_mask=mask, **more).last_hidden_state
    assert torch.allclose(again[real], wanted[real], rtol=1e-9, atol=1e-9)


class Keeps(nn.Module):
    """Leading terms cancel, so that the limit needs a second pass; `use` changes a state with the result."""

    def __init__(self, use, state) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
        self.use, self.state = use, state

    def forward(self, x, state=None):
        states = self.first(x)
        rest = self.second(states) + F.linear(states, -self.second.weight)
        return self.use(self.state if state is None else state, rest)


class Holder:
    def __init__(self) -> None:
        self.items, self.count = [], 0


class Slots:
    __slots__ = ("count", "items")

    def __init__(self) -> None:
        self.items, self.count = [], 0


def appended(holder, value):
    holder.items.append(value)
    holder.count += 1
    return torch.stack(holder.items).sum(0) * holder.count


def queued(queue, value):
    queue.append(value)
    return torch.stack(list(queue)).sum(0)


def counted(array, value):
    array += 1
    return value * float(array[0])


def counted_by_module(module, value):
    module.count += 1
    return value * module.count


def module_with_a_count():
    module = nn.Module()
    module.count = 0
    return module


STATES = {
    "object": (Holder, appended),
    "object with slots": (Slots, appended),
    "deque": (deque, queued),
    "dictionary of objects": (
        lambda: {"layer": Holder()},
        lambda state, value: appended(state["layer"], value),
    ),
    "numpy array": (lambda: np.zeros(1), counted),
    "module": (module_with_a_count, counted_by_module),
    "buffer": (lambda: torch.zeros(3, 4).double(), lambda state, value: state.add_(value) * 1.0),
}


@pytest.mark.parametrize("place", ["attribute", "argument"])
@pytest.mark.parametrize("name", STATES)
def test_a_second_pass_does_not_see_what_the_first_changed(name, place):
    make, use = STATES[name]
    model = Keeps(use, make() if place == "attribute" else None)
    x = torch.randn(3, 4).double()

    def run(orders):
        if place == "attribute":
            model.state = make()
        limit = saturated(model, orders=orders)
        return limit, limit(x, *([] if place == "attribute" else [make()]))

    limit, found = run(None)
    assert limit.used_orders == 3
    assert torch.equal(found, run(3)[1])


def test_inference_mode():
    with torch.inference_mode():
        model = nn.Sequential(
            nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.TransformerEncoderLayer(4, 2, 8, 0.0)
        )
        x = torch.randn(1, 5, 4)
        found = saturated(model.eval())(x)
    again = nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.TransformerEncoderLayer(4, 2, 8, 0.0)
    )
    again.load_state_dict(model.state_dict())
    assert torch.allclose(found, saturated(again.eval())(x.clone()), atol=1e-6)
    with torch.inference_mode():
        assert torch.allclose(found, saturated(again)(x), atol=1e-6)


def test_degrees_leave_buffers_as_they_were():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(4, 4))
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            self.keys[:2] = self.layer(x)
            return self.keys.sum(0)

    model, x = Writes(), torch.randn(2, 4)
    first = normgrowth.degrees(model, x)
    assert not model.keys.any()
    assert normgrowth.degrees(model, x).outputs == first.outputs
