"""A cell against the run that it is, and its budget against sums written the obvious way."""

import json
import pickle
from dataclasses import asdict, replace

import numpy as np
import pytest
import tiny_settings
import torch
from torch import nn

from normgrowth.lab.build import new_model, new_optimizer
from normgrowth.lab.cells.cell import batches, train_alone
from normgrowth.lab.data.corpus import load_corpus
from normgrowth.lab.evaluate import NextToken
from normgrowth.train import train as train_run


def train(*arguments, **options):
    """The records of a run."""
    return train_run(*arguments, **options).records


pytestmark = pytest.mark.usefixtures("one_thread")

TINY = replace(tiny_settings.TINY, batch=8, track="1", saturation_sentences=0)
WAYS = {
    "adamw": {"weight_decay": 0.3, "lr": 1e-2},
    "adamw, all": {"include": "all", "tied": True},
    "sgd": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.3},
    "sgd with momentum": {
        "optimizer": "sgd",
        "lr": 0.1,
        "weight_decay": 0.3,
        "momentum": 0.9,
        "clip": 1.0,
        "schedule": "linear",
        "warmup": 3,
    },
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "schedule": "cosine", "end": 1e-4},
    "adafactor": {"optimizer": "adafactor", "weight_decay": 0.1, "kind": "usual_pre_norm"},
}


@pytest.fixture(scope="module")
def pydoc():
    return load_corpus("pydoc")


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_run_of_train_to_the_bit(tmp_path, pydoc, way):
    settings = replace(TINY, **WAYS[way])
    records = train(settings, tmp_path / "run", corpus=pydoc).where(level="model")

    def last(quantity):
        return records.where(quantity=quantity).table["value"].to_pylist()[-1]

    cell = train_alone(settings, pydoc)
    assert cell.dev_loss == last("dev_loss")
    assert cell.steps == 12
    assert not cell.timed_out
    assert not cell.diverged
    assert cell.norm_end == pytest.approx(last("norm"), rel=1e-15)
    assert cell.growth == pytest.approx(last("total_growth"), rel=1e-12)
    assert cell.growth_steps == pytest.approx(last("total_growth_steps"), rel=1e-12)
    aligned = cell.growth_alignment + (0.0 if way == "adam" else cell.growth_decay)
    assert aligned == pytest.approx(last("total_growth_alignment"), rel=1e-12)
    gradients = records.where(quantity="gradient_norm").table["value"].to_numpy()
    assert cell.gradient_norm == pytest.approx(np.sqrt(np.mean(gradients**2)), rel=1e-12)


def slowly(settings, corpus):
    """Weights before each step and after the last, learning rates, losses per token: all kept."""
    model = new_model(settings, corpus).double()
    predict, optimizer = NextToken(model), new_optimizer(settings, model)
    rate = settings.rate(settings.steps)
    counted = [p for name, p in model.named_parameters() if ".blocks." in name]
    weights, losses = [nn.utils.parameters_to_vector(counted).detach().clone()], []
    for step, (ids, real, tokens) in enumerate(batches(settings, corpus)):
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        loss = predict(ids, real) / tokens
        loss.backward()
        if settings.clip:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        weights.append(nn.utils.parameters_to_vector(counted).detach().clone())
        losses.append((loss.item(), tokens))
    return torch.stack(weights), [rate(t) for t in range(settings.steps)], losses


@pytest.mark.parametrize("way", ["adamw", "sgd", "sgd with momentum"])
def test_the_budget_is_that_of_all_steps(pydoc, way):
    settings = replace(TINY, **WAYS[way], steps=21)
    theta, rates, losses = slowly(settings, pydoc)
    delta = theta[1:] - theta[:-1]
    # The decay that step t feels: its own, and with momentum what is left of all before it.
    felt = [
        sum(settings.momentum ** (t - s) * settings.decay * theta[s] for s in range(t + 1)) for t in range(21)
    ]
    decay = sum(-2 * rates[t] * float(theta[t] @ felt[t]) for t in range(21))
    if not settings.momentum:
        assert decay == pytest.approx(-2 * settings.decay * settings.lr * float((theta[:-1] ** 2).sum()))
    cell = train_alone(settings, pydoc, dtype=torch.float64)
    assert cell.growth_decay == pytest.approx(decay, rel=1e-10)
    assert cell.growth_steps == pytest.approx(float((delta**2).sum()), rel=1e-10)
    assert cell.growth_alignment == pytest.approx(2 * float((theta[:-1] * delta).sum()) - decay, rel=1e-9)
    assert cell.growth_alignment + cell.growth_steps + cell.growth_decay == pytest.approx(
        cell.growth, rel=1e-12
    )
    assert cell.growth == pytest.approx(cell.norm_end**2 - cell.norm_start**2, rel=1e-11)
    assert cell.norm_start == pytest.approx(float(theta[0].norm()), rel=1e-14)
    assert cell.numel == theta.shape[1]
    for found, part in ((cell.loss_start, losses[:2]), (cell.loss_end, losses[-2:])):  # 5 % of 21, rounded up
        assert found == pytest.approx(sum(x * n for x, n in part) / sum(n for _, n in part), rel=1e-12)


@pytest.mark.parametrize("fraction", [1e-9, 2.9e-8, 3.1e-8, 5e-8, 1e-7, 1e-6, 1e-3])
def test_decay_is_what_single_precision_leaves_of_it(pydoc, fraction):
    """Of one step, against the same step without decay: below 2⁻²⁵ nothing, then up to thrice as much."""
    settings = replace(TINY, lr=1e-5, steps=1)
    with_decay, without = (
        train_alone(replace(settings, weight_decay=decay), pydoc) for decay in (fraction / 1e-5, 0.0)
    )
    taken = with_decay.growth - without.growth
    assert with_decay.growth_decay == pytest.approx(taken, rel=0.1)
    assert (with_decay.growth_decay == 0) == (fraction < 2**-25)
    assert with_decay.growth_alignment == pytest.approx(without.growth_alignment, rel=0.02)
    nominal = -2 * fraction * with_decay.norm_start**2
    assert train_alone(
        replace(settings, weight_decay=fraction / 1e-5), pydoc, dtype=torch.float64
    ).growth_decay == pytest.approx(nominal, rel=1e-6)


def test_without_decay_its_share_is_nothing(pydoc):
    for optimizer in ("adamw", "sgd", "adam"):
        cell = train_alone(replace(TINY, steps=2, optimizer=optimizer, weight_decay=0.0), pydoc)
        assert cell.growth_decay == 0
    coupled = train_alone(replace(TINY, steps=2, optimizer="adam", weight_decay=0.1), pydoc)
    assert np.isnan(coupled.growth_decay)
    assert coupled.growth_alignment + coupled.growth_steps == pytest.approx(coupled.growth)


@pytest.mark.parametrize(
    "way", [{"lr": 1e38}, {"lr": 1e30}, {"optimizer": "sgd", "lr": 1e38}, {"optimizer": "sgd", "lr": 1e8}]
)
def test_a_cell_that_diverges_is_a_result(pydoc, way):
    """Its numbers are those of the last step whose weights are numbers."""
    cell = train_alone(replace(TINY, **way), pydoc)
    assert cell.diverged
    assert cell.diverged_at == cell.steps + 1 <= 12
    assert np.isfinite(
        [cell.norm_end, cell.growth, cell.growth_alignment, cell.growth_steps, cell.loss_end]
    ).all()
    assert np.isnan(cell.dev_loss)
    fewer = train_alone(replace(TINY, **way, steps=max(cell.steps, 1)), pydoc)
    if cell.steps:
        assert fewer.norm_end == cell.norm_end
    assert pickle.loads(pickle.dumps(cell)).norm_end == cell.norm_end
    json.dumps(asdict(cell))


def test_a_limit_stops_it_where_it_is(pydoc):
    cell = train_alone(replace(TINY, steps=None, epochs=1000), pydoc, limit=1.0)
    assert cell.timed_out
    assert not cell.diverged
    assert cell.steps > 0
    assert 1.0 < cell.seconds < 60
    assert cell.dev_loss == train_alone(replace(TINY, steps=cell.steps), pydoc).dev_loss


def test_batches_go_on_into_further_epochs(pydoc):
    few = replace(pydoc, train=pydoc.train[:20])
    seen = list(batches(replace(TINY, steps=7, epochs=5), few))
    assert len(seen) == 7
    assert sum(len(ids) for ids, _, _ in seen[:3]) == 20  # each sentence once
    assert all(tokens == int(real[:, 1:].sum()) for _, real, tokens in seen)
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(seen[:3], seen[3:6], strict=True))
