"""Which parameters grow: weights in one storage, compiled modules, and weights that cannot be scaled."""

import contextlib
import copy
import warnings
from fractions import Fraction

import pytest
import torch
from torch import nn

import normgrowth
from normgrowth.errors import InputError, UnscalableParameter
from normgrowth.limit.saturated import saturated

pytestmark = pytest.mark.usefixtures("own_random_numbers")


def two_layers() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def flattened(model: nn.Module) -> torch.Tensor:
    """Put all parameters, and a buffer, into one storage."""
    parameters = list(model.parameters())
    whole = torch.cat([parameter.detach().flatten() for parameter in parameters] + [torch.ones(4).double()])
    start = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.data = whole[start : start + size].view_as(parameter)
        start += size
    model.register_buffer("shift", whole[start:])
    return whole


def test_parameters_in_one_storage_keep_their_names_and_their_values():
    plain = two_layers()
    flat = copy.deepcopy(plain)
    whole = flattened(flat)
    before, pointers = whole.clone(), [parameter.data_ptr() for parameter in flat.parameters()]
    x = torch.randn(2, 4).double()
    wanted, found = saturated(plain), saturated(flat)
    assert torch.equal(found(x), wanted(x))
    assert found.vanished == wanted.vanished == ["2.bias"]
    assert found.degrees == wanted.degrees
    assert torch.equal(whole, before)
    assert [parameter.data_ptr() for parameter in flat.parameters()] == pointers
    assert all(not hasattr(p.untyped_storage(), "_normgrowth") for p in flat.parameters())


def test_a_buffer_in_the_storage_of_parameters_does_not_grow():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False).double()

        def forward(self, x):
            return self.layer(x), self.shift * 1

    model = Shifted()
    flattened(model)
    limit = saturated(model)
    limit(torch.randn(2, 4).double())
    assert limit.output_degrees == (Fraction(1), Fraction(0))


def test_tied_parts_of_one_storage_are_one_parameter():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).double()
    whole = torch.randn(20).double()
    model[0].weight.data = whole[:16].view(4, 4)
    model[1].weight.data = whole[:16].view(4, 4).T
    limit = saturated(model)
    x = torch.randn(2, 4).double()
    assert torch.allclose(limit(x), model(x))
    assert normgrowth.degrees(model, x).parameters == ("0.weight",)


class WithCompiledPart(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.last = nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.part(x))


@pytest.mark.parametrize("where", ["whole", "part", "in place"])
def test_compiled_modules_are_read_as_what_they_wrap(where):
    plain = WithCompiledPart(two_layers())
    x = torch.randn(2, 4).double()
    wanted = saturated(plain)
    expected = wanted(x)
    compiled = copy.deepcopy(plain)
    if where == "whole":
        compiled = torch.compile(compiled, backend="eager")
    elif where == "part":
        compiled.part = torch.compile(compiled.part, backend="eager")
    else:
        compiled.part.compile(backend="eager")
    compiled(x)  # compiled before the limit is taken
    found = saturated(compiled)
    assert torch.equal(found(x), expected)
    assert found.degrees == wanted.degrees
    assert found.vanished == wanted.vanished
    assert [row.module for row in normgrowth.degrees(compiled, x).modules] == list(wanted.degrees)


def dynamic_int8() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that this way to quantize is deprecated
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), dtype=torch.qint8)


def float8() -> nn.Module:
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(model.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    return model


def packed_bytes() -> nn.Module:
    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    return model


def packed_buffer() -> nn.Module:
    model = nn.Linear(4, 4)
    model.register_buffer("qweight", torch.zeros(2, 4, dtype=torch.int32))
    return model


def packed_bytes_in_a_buffer() -> nn.Module:
    model = nn.Linear(4, 4)
    model.register_buffer("packed", torch.full((2, 4), 119, dtype=torch.uint8))
    return model


def lazy() -> nn.Module:
    return nn.LazyLinear(4)


def meta() -> nn.Module:
    return nn.Linear(4, 4, device="meta")


def subclass() -> nn.Module:
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Linear(4, 4, bias=False)
    model.weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.ones(4, 4)))
    return model


MODELS = [dynamic_int8, float8, packed_bytes, packed_buffer, packed_bytes_in_a_buffer, lazy, meta, subclass]


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_weights_that_cannot_be_scaled_are_refused_by_the_limit_and_by_saturate(make):
    model = make()
    with pytest.raises(UnscalableParameter) as caught:
        saturated(model)(torch.ones(1, 4))
    assert caught.value.name
    with pytest.raises(UnscalableParameter), normgrowth.scaled_weights(model, 2):
        pass


def test_a_model_that_catches_an_error_inside_keeps_the_names_of_its_modules():
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("not here")

    class Catches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.inner = nn.ModuleDict({"failing": Failing(), "layer": nn.Linear(4, 4)})

        def forward(self, x):
            x = self.first(x)
            with contextlib.suppress(KeyError):
                x = self.inner["failing"](x)
            return self.inner["layer"](x)

    limit = saturated(Catches())
    limit(torch.randn(2, 4))
    assert limit.degrees == {"first": 1, "inner.layer": 2, "": 2}
    assert {met.module for met in limit.sums} == {"inner.layer"}  # its bias beside degree 2


def replace_a_module(model):
    model[1] = nn.Linear(5, 5).double()


def replace_a_parameter(model):
    model[2].weight = nn.Parameter(torch.randn(3, 5, dtype=torch.float64))


def replace_the_data(model):
    model[2].weight.data = torch.randn(3, 5, dtype=torch.float64)


def transpose_the_data(model):
    model[2].weight.data = torch.randn(5, 3, dtype=torch.float64).T


def flatten_the_data(model):
    row = torch.cat([parameter.data.flatten() for parameter in model.parameters()])
    for parameter, part in zip(
        model.parameters(), row.split([p.numel() for p in model.parameters()]), strict=True
    ):
        parameter.data = part.view_as(parameter)


def tie_the_biases(model):
    model[0].bias = nn.Parameter(model[0].bias.data[:3].repeat(2)[:5])
    model[2].bias = nn.Parameter(model[0].bias.data[:3])


def empty_a_bias(model):
    model[0].bias.data.zero_()


CHANGES = [replace_a_module, replace_a_parameter, replace_the_data, transpose_the_data, flatten_the_data]
CHANGES += [tie_the_biases, empty_a_bias]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_model_changed_between_calls_has_the_limit_of_a_new_one(change):
    """What a Limit keeps of the layout of parameters is read again when one of them is replaced or moves."""
    model, x = two_layers(), torch.randn(6, 4, dtype=torch.float64)
    limit = saturated(model)
    limit(x)
    change(model)
    new = saturated(model)
    assert torch.equal(limit(x), new(x))
    assert limit.degrees == new.degrees
    assert limit.vanished == new.vanished
    assert limit.outputs == new.outputs


def test_weights_quantized_between_calls_are_refused():
    model = two_layers()
    limit = saturated(model)
    limit(torch.ones(1, 4, dtype=torch.float64))
    model.get_submodule("1").register_buffer("qweight", torch.zeros(4, 4, dtype=torch.int8))
    with pytest.raises(UnscalableParameter):
        limit(torch.ones(1, 4, dtype=torch.float64))


def test_a_mask_of_bytes_is_no_packed_weight():
    model = nn.Linear(4, 4)
    model.register_buffer("mask", torch.ones(4, 4, dtype=torch.uint8).tril())
    assert saturated(model)(torch.ones(1, 4)).shape == (1, 4)


def test_a_name_is_no_module():
    with pytest.raises(InputError, match="load_model"):
        normgrowth.saturated("minilm")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("inputs", ["The cat sat.", ["The cat sat."]], ids=["string", "list"])
def test_sentences_are_no_inputs_of_degrees(inputs):
    with pytest.raises(InputError, match="texts="):
        normgrowth.degrees(two_layers(), inputs)
