"""Degrees against the slopes of scaled networks; sentences against what the networks do."""

import copy
import json
from dataclasses import fields, replace
from fractions import Fraction
from math import log2
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_configs import BLOCKS, tiny_config
from torch import nn

from normgrowth.degrees import degrees
from normgrowth.errors import InputError
from normgrowth.limit.explanations import covering_modules
from normgrowth.limit.module_names import grouped_modules, listed, module_labels, place, spans
from normgrowth.limit.result import Degrees
from normgrowth.limit.saturated import saturated
from normgrowth.network.inputs.default_inputs import default_inputs
from normgrowth.network.models.load import generic
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.network.scaling.result import ScaledNetwork, ScalingCurves
from normgrowth.report.sentences.scaling import sentences
from normgrowth.results import load

LAST = BLOCKS - 1


@pytest.fixture(scope="module")
def network():
    """A model by its name, with noise on what is constant at first, and inputs; made once."""
    from transformers import AutoModel

    made = {}

    def make(name):
        if name not in made:
            torch.manual_seed(0)
            config = tiny_config(name)
            config.use_cache = False
            model = AutoModel.from_config(config).eval().double()
            generic(model)
            made[name] = model, default_inputs(model).tensors
        return made[name]

    return make


@pytest.fixture(scope="module")
def found(network):
    made = {}

    def make(name):
        if name not in made:
            model, inputs = network(name)
            made[name] = degrees(model, inputs)
        return made[name]

    return make


# The last state; a block; its attention; its feedforward.
EXPECTED = {
    "bert": (1, {"encoder.layer.1": 1, "encoder.layer.1.attention.output.dense": 3, "pooler": 0}),
    "gpt2": (1, {"h.1": 3, "h.1.attn": 3, "h.1.mlp": 3, "ln_f": 1}),
    "llama": (1, {"layers.1": 5, "layers.1.self_attn": 3, "layers.1.mlp": 5, "norm": 1}),
    "olmo2": (1, {"layers.1": 1, "layers.1.self_attn": 3, "layers.1.mlp": 5, "norm": 1}),
    "t5": (1, {"encoder.block.1": 3, "decoder.block.1": 3, "encoder.block.1.layer.1.DenseReluDense": 3}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_degrees_of_known_networks(name, found):
    output, parts = EXPECTED[name]
    result = found(name)
    assert result.outputs["last_hidden_state"] == output
    rows = {row.module: row.degree for row in result.modules}
    assert {module: rows[module] for module in parts} == parts
    degree = {row["name"]: row["value"] for row in result.records.table.to_pylist()}
    assert {module: degree[module] for module in parts} == parts
    assert json.loads(json.dumps(result.to_json()))["outputs"]["last_hidden_state"] == str(output)


@pytest.mark.parametrize("name", ["bert", "gpt2"])  # their norms compute in the dtype of the model
def test_degrees_are_the_slopes_of_the_scaled_network(name, network, found):
    model, inputs = network(name)

    def sizes(c):
        seen = {}
        handles = [
            module.register_forward_hook(lambda m, a, out, n=n: seen.__setitem__(n, out))
            for n, module in model.named_modules()
        ]
        try:
            with torch.no_grad(), scaled_weights(model, c):
                model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        first = {n: out[0] if isinstance(out, tuple) else out for n, out in seen.items()}
        return {n: float(out.norm()) for n, out in first.items() if isinstance(out, torch.Tensor)}

    small, large = sizes(2.0**20), sizes(2.0**21)
    rows = {row.module: row for row in found(name).modules if row.module in small}
    assert len(rows) > 10 * BLOCKS
    for module, row in rows.items():
        assert log2(large[module] / small[module]) == pytest.approx(float(row.degree), abs=1e-3), module


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "olmo2"])
def test_vanished_parameters_and_no_others_leave_the_limit_as_it_is(name, network, found):
    model, inputs = network(name)
    vanished = found(name).vanished
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in (p for n, p in other.named_parameters() if n in vanished):
            parameter.add_(torch.randn_like(parameter))
    before, after = (saturated(m)(**inputs) for m in (model, other))
    for key in before:
        torch.testing.assert_close(after[key], before[key], rtol=1e-9, atol=0)
    generator = torch.Generator().manual_seed(0)
    for name_ in [n for n, _ in model.named_parameters() if n not in vanished][:: BLOCKS + 2]:
        other = copy.deepcopy(model)
        with torch.no_grad():
            parameter = other.get_parameter(name_)
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        after = saturated(other)(**inputs)
        assert any(not torch.allclose(after[key], before[key], rtol=1e-6) for key in before), name_


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_a_result_is_saved_and_loaded(name, found, tmp_path):
    result = found(name)
    result.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, Degrees)
    for field in fields(Degrees):
        if field.name != "records":
            assert getattr(again, field.name) == getattr(result, field.name), field.name
    assert str(again) == str(result)
    assert type(again.modules[0].degree) is Fraction


def sentence(result, *words):
    hits = [text for text in result.explanation if all(word in text for word in words)]
    assert len(hits) == 1, (words, hits, result.explanation)
    return hits[0]


def test_post_norm_bert_drops_its_residual_stream(found):
    result = found("bert")
    text = sentence(result, f"encoder.layer.0-{LAST}.attention.output (every block)", "stream is dropped")
    assert "attention.output.dense (degree 3)" in text
    assert "(degree 1)" in text
    sentence(result, f"encoder.layer.0-{LAST}.output (every block)", "stream is dropped")
    assert "degree 1 or 3" in sentence(result, "LayerNorm returns degree 1", "gain")
    assert "degree 1 vs. a product of degree 2 or 3" in sentence(result, "In every Linear the bias vanishes")
    assert "the bias of every Linear" in sentence(result, "Vanish in the limit")
    assert set(result.vanished.values()) == {"dropped"}
    assert all("LayerNorm" not in name for name in result.vanished)  # beside its gain its bias stays


def test_gated_feedforwards_of_llama_outgrow_attention(found):
    result = found("llama")
    sentence(result, "layers.0: mlp (degree 5) outgrows", "self_attn (degree 3)")
    sentence(result, f"layers.1-{LAST}: self_attn (degree 3) vanishes compared with", "(degree 5)")
    sentence(result, f"layers.0-{LAST}.mlp.down_proj gets an input of degree 4", "act_fn (2) and up_proj (2)")
    text = sentence(result, "Vanish in the limit")
    assert f"all of layers.1-{LAST}.self_attn" in text
    assert f"all of layers.1-{LAST}.input_layernorm" in text
    assert not any(name.startswith("layers.0.") for name in result.vanished)


def test_later_attention_of_llama_is_nothing_at_a_large_scale(network, found):
    """What the sentence says, seen in the scaled network itself."""
    model, inputs = network("llama")
    without = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in without.named_parameters():
            if name in found("llama").vanished:
                parameter.zero_()
    states = []
    for each in (model, without):
        with torch.no_grad(), scaled_weights(each, 1000):
            states.append(each(**inputs).last_hidden_state)
    assert torch.cosine_similarity(*states, dim=-1).min() > 1 - 1e-9


def test_norms_on_the_branch_keep_all_terms(found):
    result = found("olmo2")
    sentence(result, "all terms of every sum have the same degree")
    assert result.vanished == {}
    assert {met.kind for met in result.dropped_terms} == {"constant"}


def test_usual_pre_norm_loses_its_embeddings_from_the_stream(found):
    text = sentence(found("gpt2"), "h.0: attn (degree 3) outgrows the residual stream")
    assert "(degree 1)" in text


def test_sums_of_t5_name_where_terms_come_from(found):
    met = next(
        m for m in found("t5").dropped_terms if m.module == "decoder.block.0.layer.0" and m.kind == "stream"
    )
    assert (met.kept, met.dropped) == (3, 1)
    assert met.kept_from == "decoder.block.0.layer.0.SelfAttention"


def test_zero_and_unused_parameters_are_not_called_dropped():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle, self.nought = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            nn.init.zeros_(self.nought.weight)
            nn.init.zeros_(self.nought.bias)

        def forward(self, x):
            return self.used(x) + self.nought(x)

    result = degrees(Partly(), torch.randn(2, 4))
    assert result.outputs == {"output": 1}
    assert result.vanished == {
        "idle.weight": "unused",
        "idle.bias": "unused",
        "nought.weight": "zero",
        "nought.bias": "zero",
    }
    assert "all of nought" in sentence(result, "Exactly zero")
    assert "all of idle" in sentence(result, "Not used by the outputs")
    assert {row.module: row.degree for row in result.modules}["nought"] is None


def test_roots_have_fractional_degrees():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.map(x).abs().sqrt()

    result = degrees(Root(), torch.randn(2, 4))
    assert result.outputs == {"output": Fraction(1, 2)}
    assert result.to_json()["outputs"] == {"output": "1/2"}


def test_an_operation_without_a_rule_is_named_with_its_module():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return torch.special.bessel_j0(x @ self.weight)

    model = nn.Sequential(nn.Linear(4, 4), Odd())
    with pytest.raises(InputError, match=r"special_bessel_j0.* in module 1 \(degree 2\): .*rule"):
        degrees(model, torch.randn(2, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_module_that_runs_twice_is_one_row():
    shared = nn.Linear(4, 4)
    result = degrees(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(2, 4))
    rows = {row.module: row for row in result.modules}
    assert rows["0"].runs == 2
    assert rows["0"].degree == 2


def test_the_model_is_left_as_it_was(network):
    model, inputs = network("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    degrees(model, inputs)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_names_of_blocks():
    assert place("encoder.layer.3.output") == ("encoder.layer", 3, "output")
    assert place("norm") == ("norm", None, "")
    assert place("0") == ("", 0, "")
    assert place("²") == ("²", None, "")  # a digit to Unicode, not to us
    assert spans([0, 1, 2, 5]) == "0-2,5"
    assert module_labels(["a.0.x", "a.1.x", "a.1.y", "b"]) == ["a.0-1.x", "a.1.y", "b"]
    assert [label for label, _ in grouped_modules(["a.0", "a.1", "a.2"], str, lambda n: n == "a.1")] == [
        "a.0,2",
        "a.1",
    ]
    assert listed(list("abcdefg"), 2) == "a, b and 5 more"
    assert listed(["a"]) == "a"


def test_covering_never_says_more_than_it_was_given():
    parameters = ["a.0.w", "a.0.bias", "a.1.w", "a.1.bias", "out.w", "out.bias", "n.w"]
    kinds = {"a.0": "Linear", "a.1": "Linear", "out": "Linear", "n": "Norm"}
    assert covering_modules(["a.0.w", "a.0.bias"], parameters, kinds) == ["all of a.0"]
    biases = [name for name in parameters if name.endswith("bias")]
    assert covering_modules(biases, parameters, kinds) == ["the bias of every Linear"]
    assert covering_modules(["a.0.bias", "a.1.bias"], parameters, kinds) == ["a.0-1.bias"]
    assert covering_modules([*biases, "n.w"], parameters, kinds) == ["all of n", "the bias of every Linear"]


def test_an_output_without_a_tensor_is_refused(own_random_numbers):
    """Else every parameter would seem to vanish."""

    class Hidden(torch.nn.Linear):
        def forward(self, x):
            return SimpleNamespace(states=super().forward(x))

    with pytest.raises(InputError, match="SimpleNamespace"):
        degrees(Hidden(2, 2), torch.ones(1, 2))


def test_doubtful_values_are_shown_without_the_explanation():
    found = degrees(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert found.undecided_values == 0
    assert "Warning" not in str(found)
    assert "Warning: 7 values" in str(replace(found, undecided_values=7))


def test_doubtful_values_of_scaling_curves_are_shown():
    curves = [
        ScalingCurves((ScaledNetwork(run, undecided=count),), np.array([1.0, 2.0]), {})
        for run, count in (("first", 0), ("second", 3))
    ]
    (sentence,) = sentences(SimpleNamespace(curves=curves))
    assert "second (3)" in sentence
    assert "first" not in sentence
