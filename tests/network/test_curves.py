"""Scaling curves: against a slow reference, and the rates that the theory gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from normgrowth.errors import InputError
from normgrowth.limit.saturated import saturated
from normgrowth.network.convergence import local_powers, rate
from normgrowth.network.models.encoders import EncoderConfig
from normgrowth.network.scaling import encoder, joined, label_of, paper_configs, random_ids, scaling
from normgrowth.paper.stages.table1_networks import spread_norms
from normgrowth.records import Records
from normgrowth.report.terminal.scaling import sentences

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = EncoderConfig(vocabulary=10, max_length=6, layers=2, width=12, heads=3, feedforward=16)
FEW = (1.0, 3.0, 10.0, 1e4)


def same(a, b):
    """NaN, of which the first local power is one, equals NaN."""
    values = [records.table["value"].to_numpy() for records in (a, b)]
    tables = [records.table.drop_columns("value").to_pylist() for records in (a, b)]
    return tables[0] == tables[1] and np.array_equal(*values, equal_nan=True)


@pytest.mark.parametrize("kind", ["paper_pre_norm", "usual_pre_norm", "post_norm"])
def test_every_number_is_that_of_a_slow_reference(kind):
    config = replace(CONFIG, kind=kind)
    records = scaling(config, scales=FEW, seeds=[3])
    model, ids = encoder(config, 3), random_ids(config, 3)
    limit = saturated(model)(ids, return_states=True)
    square = sum(float((p.detach() ** 2).sum()) for p in model.parameters())
    for i, c in enumerate(FEW):
        with torch.no_grad():
            theta = {name: c * p for name, p in model.named_parameters()}
            found = functional_call(model, theta, (ids,), {"return_states": True})
        for j, (own, wanted) in enumerate(zip(found[1:], limit[1:], strict=True)):
            pairs = [(a, b) for x, y in zip(own, wanted, strict=True) for a, b in zip(x, y, strict=True)]
            cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in pairs]
            error = float((own / c**config.degree - wanted).norm() / wanted.norm())
            names = [("layer", f"layer.{j}")] + ([("model", "model")] if j == config.layers - 1 else [])
            for level, name in names:
                assert records.series("cosine_saturated", level=level, name=name)[1][i] == pytest.approx(
                    np.mean(cosines), abs=1e-9
                )
                assert records.series("scaling_error", level=level, name=name)[1][i] == pytest.approx(
                    error, rel=1e-6, abs=1e-13
                )
        a, b = found[-1].flatten(), limit[-1].flatten()
        assert records.series("cosine_flattened")[1][i] == pytest.approx(
            float(a @ b / (a.norm() * b.norm())), abs=1e-9
        )
        assert records.series("scaled_norm")[1][i] == pytest.approx(c * square**0.5)
    steps, scales = records.series("scale")
    assert (steps.tolist(), scales.tolist()) == ([0, 1, 2, 3], list(FEW))
    (facts,) = records.made_by["runs"].values()
    assert facts["degree"] == config.degree


@pytest.mark.parametrize(
    ("kind", "bias", "eps", "law", "power"),
    [
        ("paper_pre_norm", False, 0.0, "exponential", None),
        ("paper_pre_norm", False, 1e-5, "power", 6),  # eps beside what has degree 3
        ("paper_pre_norm", True, 0.0, "power", 1),
        ("usual_pre_norm", False, 0.0, "power", 2),
        ("usual_pre_norm", True, 1e-5, "power", 1),
        ("post_norm", False, 1e-5, "power", 2),
        ("post_norm", True, 0.0, "power", 1),
    ],
)
def test_the_error_falls_as_the_theory_says(kind, bias, eps, law, power):
    """Definition 3 asks for an exponential. Only the paper's pre-norm has it, without biases and without eps."""
    config = replace(paper_configs(2, 24)[0], kind=kind, bias=bias, eps=eps)
    (facts,) = scaling(config, seeds=[1]).made_by["runs"].values()
    assert facts["rate"]["law"] == law
    assert power is None or facts["rate"]["power"] == pytest.approx(power, rel=0.02)


def test_with_and_without_biases_alike_at_random_initialisation():
    """Figure 4: the cosines are close at every c, and go to 1 for both; the errors are orders of magnitude apart."""
    for bare, biased in zip(*[iter(paper_configs(2, 48))] * 2, strict=True):
        curves = {}
        for config in (bare, biased):
            records = scaling(config, scales=np.geomspace(1, 1e4, 9).tolist(), seeds=[0, 1])
            runs = [records.where(run=run) for run in records.distinct("run")]
            curves[config.bias] = np.mean([run.series("cosine_saturated")[1] for run in runs], axis=0)
            errors = [run.series("scaling_error")[1][-1] for run in runs]
            assert (np.min(errors) < 1e-6) != config.bias
        assert np.abs(curves[False] - curves[True]).max() < 0.1
        assert min(curve[-1] for curve in curves.values()) > 0.999
        assert min(curve[-1] - curve[0] for curve in curves.values()) > 0.05


def test_one_seed_has_the_same_weights_with_and_without_biases():
    bare, full = encoder(replace(CONFIG, bias=False), 5), encoder(CONFIG, 5)
    weights = dict(full.named_parameters())
    assert all(torch.equal(parameter, weights[name]) for name, parameter in bare.named_parameters())
    assert not torch.equal(weights["token_embedding.weight"], encoder(CONFIG, 6).token_embedding.weight)


def test_records_round_trip_and_join(tmp_path):
    parts = [scaling(replace(CONFIG, bias=bias), scales=FEW, seeds=[0, 1]) for bias in (False, True)]
    records = joined(parts)
    records.write(tmp_path)
    again = Records.read(tmp_path)
    assert same(again, records)
    assert again.made_by == records.made_by
    runs = [f"{label_of(replace(CONFIG, bias=bias))}, seed {s}" for bias in (False, True) for s in (0, 1)]
    assert again.distinct("run") == runs == list(again.made_by["runs"])


def test_a_module_is_left_as_it_was_and_padding_does_not_count():
    model = spread_norms(encoder(CONFIG, 0)).train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    ids = random_ids(CONFIG, 0)
    mask = torch.ones_like(ids)
    mask[::2, 4:] = 0

    def states(module, batch):
        return module(batch["ids"], batch["attention_mask"], return_states=True)

    done = []
    inputs = {"ids": ids, "attention_mask": mask}
    records = scaling(model, inputs, scales=FEW, states=states, progress=lambda *seen: done.append(seen))
    other = {"ids": ids.where(mask.bool(), 7), "attention_mask": mask}
    again = scaling(model, other, scales=FEW, states=states)
    assert same(again, records)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert (done[0][0], done[-1][:2]) == (0, (1000, 1000))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    from tiny_configs import BLOCKS, tiny_config

    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(tiny_config(name)).double().eval()
    records = scaling(model, scales=(1.0, 10.0, 1e3))
    assert len(records.where(level="layer").distinct("name")) == BLOCKS
    values = records.series("cosine_saturated")[1]
    assert values[-1] > max(0.99, values[0])


def test_rates_of_made_up_errors():
    c = np.geomspace(1, 1e4, 49)
    assert local_powers(c, 3 * c**-2.0)[1:] == pytest.approx(2)
    assert np.isnan(local_powers(c, c)[0])
    found = rate(c, 5 * c, 0.1 * c**-1.5)
    assert (found.law, round(found.power, 6)) == ("power", 1.5)
    assert "c^-1.5" in found.sentence()
    exponential = rate(c, 5 * c, np.exp(-c) + 1e-16)
    assert exponential.law == "exponential"
    assert exponential.decay == pytest.approx(1 / 5, rel=1e-3)
    assert rate(c, c, np.full(49, 0.01)).law == "unsettled"
    assert rate(c, c, np.full(49, np.nan)).law == "unsettled"
    single = rate(c, c, c**-2.0 + 2e-7, unit=2.0**-23)  # rounding of float32
    assert (single.law, single.power) == ("power", pytest.approx(2, rel=0.06))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scales": [1.0]}, "at least two"),
        ({"scales": [1.0, float("inf")]}, "finite"),
        ({"scales": [0.0, 1.0]}, "above 0"),
        ({"scales": [2.0, 1.0]}, "must grow"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [1, 1]}, "each once"),
        ({"inputs": [1, 2]}, "token ids or tensors by name"),
        ({"inputs": torch.full((1, 99), 1)}, "99 tokens are more than max_length"),
        ({"inputs": torch.tensor([[11]])}, "does not run on this input"),
    ],
)
def test_bad_input_is_said(options, message):
    with pytest.raises(InputError, match=message):
        scaling(CONFIG, **{"scales": FEW, "seeds": [0]} | options)


def test_bad_modules_are_said():
    with pytest.raises(InputError, match="what it takes is not known"):
        scaling(nn.Linear(2, 2))
    with pytest.raises(InputError, match="seeds are for"):
        scaling(nn.Linear(2, 2), seeds=[0])
    model = encoder(CONFIG, 0)
    nn.init.constant_(model.blocks[0].attention.query.weight, float("nan"))
    with pytest.raises(InputError, match=r"attention\.query\.weight holds NaN"):
        scaling(model, {"ids": torch.ones(1, 2).long()}, states=lambda m, x: m(**x, return_states=True))


def test_a_scale_that_overflows_a_norm_is_nan_and_not_zero():
    """The norms of transformers square in float32, and give finite nonsense where that overflows."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=99, feed_forward_proj="gated-gelu"
    )
    model = transformers.T5EncoderModel(config).double().eval()
    ids = torch.randint(5, 99, (2, 6))
    records = scaling(model, ids, scales=[*np.geomspace(10, 1e3, 9), 1e7])
    cosines = records.series("cosine_saturated")[1]
    assert np.isnan(cosines[-1])
    assert (cosines[:-1] > 0.5).all()
    (facts,) = records.made_by["runs"].values()
    assert facts["overflow"] == 1e7
    assert facts["rounding"] == torch.finfo(torch.float32).eps, "its norms compute in float32"
    assert facts["rate"]["sentence"] == "falls like c^-2.0"
    assert any("from c = 10,000,000 on a norm overflows" in line for line in sentences(records))
