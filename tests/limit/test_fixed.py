"""Parameters that are held fixed, and what a network without a limit is refused with."""

import copy
import pickle
from fractions import Fraction

import pytest
import torch
import transformers as hf
from hypothesis import given
from hypothesis import strategies as st
from limit.test_mode import Small, X
from limit.test_rules import few
from refusals import refused
from torch import nn

import normgrowth
from normgrowth.errors import InputError, NoLimit, UnsupportedOperation
from normgrowth.limit.saturated import saturated
from normgrowth.network.scaled_weights import scaled_weights


def decaying(self, x):
    return torch.exp(-self.a(x).abs()) * self.b(x) + self.b(x)


def test_what_grows_without_bound_names_the_parameter():
    model = nn.Sequential(Small(lambda self, x: self.b(x) * self.a.bias.exp()))
    with pytest.raises(NoLimit) as caught:
        saturated(model)(X)
    error = caught.value
    assert (error.operation, error.module, error.degrees) == ("aten.exp.default", "0", (1,))
    assert error.parameters == ("0.a.bias",)
    assert str(error) == (
        "aten.exp.default in module 0 (degree 1): grows faster than any power of c; it depends on 0.a.bias: "
        "hold it fixed with fixed=['*.bias'] (--fixed '*.bias')"
    )
    run = saturated(model, fixed=["0.a.bias"])
    with torch.no_grad():
        expected = nn.functional.linear(X, model[0].b.weight, model[0].b.bias) * model[0].a.bias.exp()
    torch.testing.assert_close(run(X), expected)
    assert run.degrees[""] == 1
    assert "0.a.bias" not in run.vanished


def test_the_advice_for_several_parameters():
    def said(*names):
        return str(NoLimit("aten.exp.default", parameters=names)).partition("c; ")[2]

    assert (
        said("a.q", "b.q", "c")
        == "it depends on a.q, b.q, c: hold fixed those that make it grow (fixed=[...], --fixed)"
    )
    assert (
        said("0.q", "0.k")
        == "it depends on 0.q, 0.k: hold them fixed with fixed=['*.k', '*.q'] (--fixed '*.k' '*.q')"
    )
    assert "a, b, c and 2 more" in said("a", "b", "c", "d", "e")
    assert said() == ""


def test_what_falls_to_nothing_has_a_limit():
    model = Small(decaying)
    run = saturated(model)
    torch.testing.assert_close(run(X), model.b(X).detach())
    assert run.degrees[""] == 1


def test_a_diverging_output_is_refused():
    with pytest.raises(NoLimit):
        saturated(Small(lambda self, x: self.a(x).abs().exp()))(X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: 1 / (x.square() + x.exp()),
        lambda x: (x.exp() - x.square()).clamp(max=1),
        lambda x: x.exp() * 0.5,
        lambda x: x.exp() / x,
        lambda x: torch.where(x > 0, x.exp(), x),
        lambda x: torch.cat([x.exp(), x]),
        lambda x: torch.log(x.exp()),
        lambda x: -x.exp(),
        lambda x: x.clone().exp_().add_(1).sum(),
    ],
)
def test_what_depends_on_a_diverging_value_is_refused(f):
    with pytest.raises(NoLimit, match=r"exp.*a.bias"):
        saturated(Small(lambda self, _: f(self.a.bias.abs())))(X)


def test_errors_have_fields_and_can_be_sent_to_other_processes():
    model = nn.Sequential(Small(lambda self, x: torch.special.i0(self.a(x))))
    with pytest.raises(UnsupportedOperation) as caught:
        saturated(model)(X)
    assert isinstance(caught.value, InputError)
    assert caught.value.operation == "aten.i0.default"
    assert caught.value.module == "0"
    assert caught.value.degrees == (Fraction(1),)
    for error in (caught.value, NoLimit("aten.exp.default", "a", [None], parameters=["a.b", "c"])):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
    assert normgrowth.UnsupportedOperation is UnsupportedOperation
    assert normgrowth.NoLimit is NoLimit


def test_noise_in_evaluation_mode_is_no_forgotten_switch():
    """As in the decoder prenet of SpeechT5."""
    model = Small(lambda self, x: nn.functional.dropout(self.a(x), 0.5, training=True))
    with pytest.raises(UnsupportedOperation, match="although the model is in evaluation mode"):
        saturated(model.eval())(X)
    with pytest.raises(UnsupportedOperation, match=r"call model.eval\(\) first"):
        saturated(model.train())(X)


def test_patterns_that_match_nothing():
    model = Small()
    message = refused(saturated, model, fixed=["a.wieght"])
    assert message == "fixed: no parameter matches 'a.wieght'; close matches: a.weight, b.weight"
    assert refused(saturated, model, fixed=["*.A_log"]) == "fixed: no parameter matches '*.A_log'"
    assert "close matches: b.bias, a.bias" in refused(saturated, model, fixed=["model.bias"])
    assert refused(saturated, model, fixed="a.bias") == 'fixed must be a list of names: fixed=["a.bias"]'
    assert "'x'" in refused(scaled_weights, model, 2.0, fixed=["x"])


def test_a_tied_parameter_is_fixed_by_any_of_its_names():
    model = Small()
    model.b.weight = model.a.weight
    run = saturated(model, fixed=["b.weight", "*.bias"])
    run(X)
    assert run.degrees[""] == 0


def test_degrees_with_fixed_parameters():
    found = normgrowth.degrees(Small(), X, fixed=["b.*"])
    assert found.outputs == {"output": 1}
    assert found.parameters == ("a.weight", "a.bias")
    assert "b.weight" not in found.vanished


def test_fixed_parameters_are_not_scaled():
    model = Small()
    before = copy.deepcopy(model.state_dict())
    with scaled_weights(model, 4.0, fixed=["*.bias"]):
        assert torch.equal(model.a.weight, 4 * before["a.weight"])
        assert torch.equal(model.a.bias, before["a.bias"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@few
@given(held=st.sets(st.sampled_from("012")))
def test_the_degree_is_the_number_of_layers_that_grow(held):
    """Without biases the network is homogeneous in each layer: its limit is itself."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3, bias=False) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).double()
    names = {"0": "0.weight", "1": "2.weight", "2": "4.weight"}
    run = saturated(model, fixed=[names[place] for place in sorted(held)])
    found = run(X.double())
    assert run.degrees[""] == 3 - len(held)
    with torch.no_grad():
        torch.testing.assert_close(found, model(X.double()))


def test_nothing_grows_if_all_is_held_fixed():
    model = Small(decaying)
    run = saturated(model, fixed=["*"])
    with torch.no_grad():
        assert torch.equal(run(X), model(X))
    assert run.degrees[""] == 0
    assert run.vanished == []


def clip():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    text = dict(**sizes, vocab_size=50, max_position_embeddings=16, bos_token_id=1, eos_token_id=2)
    config = hf.CLIPConfig(
        text_config=text, vision_config=dict(**sizes, image_size=16, patch_size=8), projection_dim=16
    )
    model = hf.CLIPModel(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    ids = torch.randint(3, 50, (2, 6))
    return model, dict(input_ids=ids, pixel_values=torch.randn(3, 3, 16, 16).double())


@pytest.mark.usefixtures("one_thread")
def test_the_temperature_of_clip():
    model, given = clip()
    with pytest.raises(NoLimit) as caught:
        saturated(model)(**given)
    assert caught.value.parameters == ("logit_scale",)
    assert "fixed=['logit_scale']" in str(caught.value)
    run = saturated(model, fixed=["logit_scale"])
    found = run(**given)
    assert run.doubtful == 0
    with torch.no_grad(), scaled_weights(model, 2.0**20, fixed=["logit_scale"]):
        scaled = model(**given)
    torch.testing.assert_close(found.logits_per_image, scaled.logits_per_image, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.text_embeds, scaled.text_embeds, rtol=1e-5, atol=1e-5)
