"""Scaling curves: against a slow reference, and the rates that the theory gives."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from normgrowth.errors import FolderMismatch, InputError
from normgrowth.limit.saturated import saturated
from normgrowth.network.models.encoders import EncoderConfig
from normgrowth.network.scaling.convergence import local_powers, rate
from normgrowth.network.scaling.curves import encoder, label_of, paper_configs, random_ids
from normgrowth.network.scaling.result import Scaling, joined_scalings
from normgrowth.paper.stages.table1_networks import spread_norms
from normgrowth.records import Records
from normgrowth.report.sentences.scaling import sentences
from normgrowth.results import load
from normgrowth.scaling import scaling

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = EncoderConfig(vocabulary=10, max_length=6, layers=2, width=12, heads=3, feedforward=16)
FEW = (1.0, 3.0, 10.0, 1e4)


def same(a, b):
    """NaN, of which the first local power is one, equals NaN."""
    values = [one.records.table["value"].to_numpy() for one in (a, b)]
    tables = [one.records.table.drop_columns("value").to_pylist() for one in (a, b)]
    return tables[0] == tables[1] and np.array_equal(*values, equal_nan=True)


@pytest.mark.parametrize("kind", ["paper_pre_norm", "usual_pre_norm", "post_norm"])
def test_every_number_is_that_of_a_slow_reference(kind):
    config = replace(CONFIG, kind=kind)
    result = scaling(config, c=FEW, seeds=[3])
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
                assert result.matrix("cosine_saturated", level).curve(name)[i] == pytest.approx(
                    np.mean(cosines), abs=1e-9
                )
                assert result.matrix("scaling_error", level).curve(name)[i] == pytest.approx(
                    error, rel=1e-6, abs=1e-13
                )
        a, b = found[-1].flatten(), limit[-1].flatten()
        assert result.matrix("cosine_flattened", "model").values[i, 0] == pytest.approx(
            float(a @ b / (a.norm() * b.norm())), abs=1e-9
        )
        assert result.matrix("scaled_norm", "model").values[i, 0] == pytest.approx(c * square**0.5)
    assert result.matrix("scaled_norm", "model").steps.tolist() == list(FEW)
    (network,) = result.networks
    assert (network.degree, network.seed, network.kind) == (config.degree, 3, kind)
    assert result.records.distinct("seed") == [3]


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
    (network,) = scaling(config, seeds=[1]).networks
    assert network.rate is not None
    assert network.rate.law == law
    assert power is None or network.rate.power == pytest.approx(power, rel=0.02)


def test_with_and_without_biases_alike_at_random_initialization():
    """Figure 4: the cosines are close at every c, and go to 1 for both; the errors are orders of magnitude apart."""
    for bare, biased in zip(*[iter(paper_configs(2, 48))] * 2, strict=True):
        curves = {}
        for config in (bare, biased):
            (found,) = scaling(config, c=np.geomspace(1, 1e4, 9).tolist(), seeds=[0, 1]).curves
            curves[config.bias] = found.mean("cosine_saturated")
            errors = found.of("scaling_error")[:, -1]
            assert (np.min(errors) < 1e-6) != config.bias
        assert np.abs(curves[False] - curves[True]).max() < 0.1
        assert min(curve[-1] for curve in curves.values()) > 0.999
        assert min(curve[-1] - curve[0] for curve in curves.values()) > 0.05


def test_one_seed_has_the_same_weights_with_and_without_biases():
    bare, full = encoder(replace(CONFIG, bias=False), 5), encoder(CONFIG, 5)
    weights = dict(full.named_parameters())
    assert all(torch.equal(parameter, weights[name]) for name, parameter in bare.named_parameters())
    assert not torch.equal(weights["token_embedding.weight"], encoder(CONFIG, 6).token_embedding.weight)


def test_results_round_trip_and_join(tmp_path):
    parts = [scaling(replace(CONFIG, bias=bias), c=FEW, seeds=[0, 1]) for bias in (False, True)]
    result = joined_scalings(parts, notes=("note",))
    result.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, Scaling)
    assert same(again, result)
    assert again.networks == result.networks
    assert again.notes == ("note",)
    wanted = [(label_of(replace(CONFIG, bias=bias)), seed) for bias in (False, True) for seed in (0, 1)]
    assert [(one.run, one.seed) for one in again.networks] == wanted
    assert again.records.distinct("run") == list(dict.fromkeys(run for run, _ in wanted))
    assert "paper_pre_norm, biases" in str(again)
    assert again.plot().axes
    assert len(again.to_json()["networks"]) == 4


def test_the_records_of_figure_4_have_a_curve_for_each_network():
    folder = Path(__file__).parents[2] / "docs/records/figure4"
    found = load(folder)
    assert isinstance(found, Scaling)
    assert len(found.networks) == 18
    old = Records.read(folder).where(run="post_norm, biases", seed=2)
    curves = next(one for one in found.curves if one.run == "post_norm, biases")
    own = old.matrix("cosine_saturated", level="model", axis="scale")
    assert curves.scales.tolist() == own.steps.tolist()
    assert curves.of("cosine_saturated")[2].tolist() == own.values[:, 0].tolist()
    layers = found.matrix("scaling_error", run="post_norm, biases", seed=2)
    assert (
        layers.curve("layer.3").tolist()
        == old.where(name="layer.3").matrix("scaling_error", axis="scale").values[:, 0].tolist()
    )
    assert "post_norm, biases" in str(found)


def test_a_name_and_an_output_folder(tmp_path):
    pytest.importorskip("transformers")
    from tiny_configs import tiny_config

    tiny_config("bert").save_pretrained(tmp_path / "model")
    model, out = tmp_path / "model", tmp_path / "out"
    result = scaling(model, c=FEW, seeds=2, out=out)
    assert [one.seed for one in result.networks] == [0, 1]
    assert same(load(out), result)
    with pytest.raises(FolderMismatch):
        scaling(model, c=FEW, seeds=1, out=out)
    assert len(scaling(model, c=FEW, seeds=1, out=out, overwrite=True).networks) == 1
    with pytest.raises(InputError):
        scaling("paper", c=FEW, texts="x.txt")
    with pytest.raises(InputError):
        scaling(model, c=FEW, layers=2)


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
    records = scaling(model, inputs, c=FEW, states=states, progress=lambda *seen: done.append(seen))
    other = {"ids": ids.where(mask.bool(), 7), "attention_mask": mask}
    again = scaling(model, other, c=FEW, states=states)
    assert same(again, records)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert (done[0][:2], done[-1][:2]) == ((1, len(FEW)), (len(FEW), len(FEW)))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_models_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    from tiny_configs import BLOCKS, tiny_config

    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(tiny_config(name)).double().eval()
    result = scaling(model, c=(1.0, 10.0, 1e3))
    assert len(result.matrix("cosine_saturated").names) == BLOCKS
    values = result.curves[0].mean("cosine_saturated")
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
        ({"c": [1.0]}, "at least two"),
        ({"c": [1.0, float("inf")]}, "finite"),
        ({"c": [0.0, 1.0]}, "above 0"),
        ({"c": [2.0, 1.0]}, "must be strictly ascending"),
        ({"seeds": []}, "at least one"),
        ({"seeds": [1, 1]}, "distinct"),
        ({"inputs": [1, 2]}, "token ids or a dict of tensors"),
        ({"inputs": torch.full((1, 99), 1)}, "input has 99 tokens, but max_length"),
        ({"inputs": torch.tensor([[11]])}, "does not run on this input"),
    ],
)
def test_bad_input_is_said(options, message):
    with pytest.raises(InputError, match=message):
        scaling(CONFIG, **{"c": FEW, "seeds": [0]} | options)


def test_bad_modules_are_said():
    with pytest.raises(InputError, match="its inputs are unknown"):
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
    result = scaling(model, ids, c=[*np.geomspace(10, 1e3, 9), 1e7])
    cosines = result.curves[0].mean("cosine_saturated")
    assert np.isnan(cosines[-1])
    assert (cosines[:-1] > 0.5).all()
    (network,) = result.networks
    assert network.overflow == 1e7
    assert network.rounding == torch.finfo(torch.float32).eps, "its norms compute in float32"
    assert network.rate is not None
    assert network.rate.sentence() == "falls like c^-2.0"
    assert any("overflows from c = 10,000,000" in line for line in sentences(result))
