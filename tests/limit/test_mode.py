"""A call leaves nothing behind, refuses what it cannot do, and says what to do instead."""

import copy
import warnings
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from limit.growing import limit
from torch import nn

from normgrowth.errors import InputError
from normgrowth.limit import RULES, Series, rule
from normgrowth.limit.saturated import saturated

X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])


class Small(nn.Module):
    def __init__(self, f=lambda self, x: self.b(torch.relu(self.a(x)))):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.f = nn.Linear(3, 3), nn.Linear(3, 3), f

    def forward(self, x):
        return self.f(self, x)


def state():
    return torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled


def untouched(model, before):
    """No hooks, nothing on storages, weights as they were to the bit."""
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    for name, tensor in model.state_dict().items():
        assert not vars(tensor.untyped_storage()) if hasattr(tensor.untyped_storage(), "__dict__") else True
        assert not hasattr(tensor.untyped_storage(), "_normgrowth")
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_nothing_is_left_behind(error):
    def f(self, x):
        found = self.b(self.a(x))
        if error:
            raise error("in the middle")
        return found

    model = Small(f)
    before, flags = copy.deepcopy(model.state_dict()), state()
    run = saturated(model)
    if error:
        with pytest.raises(error, match="in the middle"):
            run(X)
    else:
        assert run(X).sum().isfinite()
    untouched(model, before)
    assert state() == flags


def test_outputs_are_plain_tensors():
    found = saturated(Small())(X)
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert (found * 2).numpy().shape == (2, 3)


def test_no_warning_is_given_for_recurrent_layers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        states, _ = saturated(nn.LSTM(3, 2).eval())(X[None])
    assert states.shape == (1, len(X), 2)


def test_what_a_call_returns_keeps_its_degree_in_the_next():
    model = Small(lambda self, x: self.a(x))
    run = saturated(model)
    once = run(X)
    assert run.degrees[""] == 1
    run(once)
    assert run.degrees[""] == 2


def test_what_another_limit_returns_is_refused():
    once = saturated(Small())(X)
    other = saturated(Small())
    with pytest.raises(InputError, match=r"degree 2 from another saturated\(...\) model.*clone"):
        other(once)
    other(once.clone())
    assert other.degrees[""] == 2


def test_a_limit_inside_a_limit():
    inner = Small()
    model = Small(lambda self, x: self.a(x) + saturated(inner)(X))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InputError, match="another"):
        saturated(model)(X)
    untouched(model, before)
    untouched(inner, inner.state_dict())


def test_tied_and_frozen_weights():
    model = Small()
    model.b.weight = model.a.weight
    model.a.weight.requires_grad_(False)
    run = saturated(model)
    run(X)
    assert run.degrees[""] == 2
    assert run.vanished == ["a.bias", "b.bias"] or set(run.vanished) <= {"a.bias", "b.bias"}


def test_parameters_that_share_a_flat_storage():
    """The first of them is all zero; that says nothing of the others."""
    flat = torch.cat([torch.zeros(3), torch.arange(1.0, 10.0)])
    model = nn.Linear(3, 3)
    model.bias, model.weight = nn.Parameter(flat[:3]), nn.Parameter(flat[3:].view(3, 3))
    run = saturated(model)
    assert torch.equal(run(X), F.linear(X, flat[3:].view(3, 3)))
    assert run.degrees[""] == 1


def test_meta_models_are_refused():
    with pytest.raises(InputError, match=r"a\.weight is on the meta device"):
        saturated(Small().to("meta"))(X)


def test_training_mode_matters_only_with_dropout():
    assert saturated(Small().train())(X).isfinite().all()
    for layer in (nn.Dropout(0.5), nn.BatchNorm1d(3)):
        model = nn.Sequential(nn.Linear(3, 3), layer)
        with pytest.raises(InputError, match=r"call model.eval\(\) first"):
            saturated(model.train())(X)
        saturated(model.eval())(X)


def test_an_operation_without_a_rule():
    model = nn.Sequential(Small(lambda self, x: torch.special.i0(self.a(x))))
    with pytest.raises(
        InputError, match=r'aten.i0.* in module 0 \(degree 1\): no rule.*@normgrowth.*rule\("i0"\)'
    ):
        saturated(model)(X)


def test_a_rule_of_ones_own():
    model = Small(lambda self, x: torch.special.entr(self.a(x)))
    try:

        @rule("special_entr")
        def entropy(operation, x):
            return x.map(lambda value: -value)

        run = saturated(model)
        run(X)
        assert run.degrees[""] == 1
    finally:
        del RULES["special_entr"]


@pytest.mark.parametrize("ask", [float, bool, int, torch.Tensor.item, lambda v: v.long()])
def test_a_number_is_not_to_be_had_of_what_grows(ask):
    with pytest.raises(InputError):
        saturated(Small(lambda self, x: ask(self.a(x).sum())))(X)


def test_dtypes():
    """A float16 weight and a float32 input; integers and bools beside what grows."""
    grown = {1: torch.tensor([1.0, -2.0])}
    half = {1: torch.tensor([1.0, -2.0], dtype=torch.float16)}

    def dtype_of(f, *inputs):
        """The dtype that the network's own code sees."""
        seen = []
        limit(lambda *given: seen.append(f(*given).dtype) or given[0], *inputs)
        return seen[0]

    assert dtype_of(lambda a, b: a + b, half, torch.ones(2)) == torch.float32
    assert dtype_of(lambda a, b: a * b, half, {2: torch.ones(2)}) == torch.float32
    assert dtype_of(lambda a: a + 1.5, half) == torch.float16
    assert dtype_of(lambda a: torch.softmax(a, -1, torch.float32), half) == torch.float32
    assert dtype_of(lambda a: a * torch.tensor(2.0), half) == torch.float16
    assert dtype_of(lambda a: torch.sign(a), half) == torch.float16
    assert dtype_of(lambda a: torch.zeros_like(a), half) == torch.float16
    assert limit(lambda a: a * torch.tensor([2, 3]), grown).top.value.tolist() == [2, -6]
    assert limit(lambda a: a * torch.tensor([True, False]), grown).top.value.tolist() == [1, 0]
    assert limit(lambda a: (a > 0) & torch.tensor([True, True]), grown).tolist() == [True, False]
    assert limit(lambda a: a.bool(), grown).tolist() == [True, True]
    assert limit(lambda a: a.to(torch.bfloat16).float(), grown).top.degree == Fraction(1)


def test_bounds_at_the_end_of_the_dtype_are_none():
    """What float16 models do to keep infinities out."""
    half = {2: torch.tensor([1.0, -2.0], dtype=torch.float16)}
    most = torch.finfo(torch.float16).max
    found = limit(lambda x: torch.clamp(x, min=-most, max=most), half)
    assert found.top.degree == 2
    assert found.top.value.tolist() == [1, -2]


def test_bits_are_not_read():
    with pytest.raises(InputError, match="bits"):
        limit(lambda x: x.view(torch.int32), {1: torch.ones(2)})


def test_a_constant_that_a_zero_is_added_to_is_not_marked():
    """Its sum with an exact zero might be a view of it."""
    constant = torch.ones(2)
    assert isinstance(limit(lambda a: a + constant, {1: torch.zeros(2)}), Series)
    assert not hasattr(constant.untyped_storage(), "_normgrowth")


def test_a_tensor_equals_itself_in_every_order():
    """`isfinite` asks x == x: no order that was left out can change the answer."""

    class Guarded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.last = nn.Linear(4, 4)

        def forward(self, x):
            x = self.last(self.layer(x))
            assert bool(torch.isfinite(x).all())
            return x

    limit = saturated(Guarded())
    limit(torch.randn(2, 4))
    assert (limit.doubtful, limit.used_orders) == (0, 1)


def test_lower_terms_stay_when_the_network_writes_to_what_they_came_from():
    a, b = {2: torch.ones(3).double()}, {1: torch.arange(1.0, 4.0).double()}

    def of_a_sum(a, b):
        found = a + b
        b.mul_(5)
        return found

    def of_a_copy(a, b):
        first = a + b
        second, third = first.clone(), first * 2
        first.zero_()
        second[0] = 0.0
        return third

    for f, factor in ((of_a_sum, 1), (of_a_copy, 2)):
        found = limit(f, a, b)
        assert [t.degree for t in found.terms] == [2, 1]
        assert [t.value.tolist() for t in found.terms] == [[factor] * 3, [factor * v for v in (1, 2, 3)]]


def test_lower_terms_stay_when_the_network_writes_to_what_they_became():
    """y - x is the lower term of y alone."""

    def of_a_difference(x, y):
        total = x + y
        rest = total - x
        rest.mul_(100)
        return total - x

    found = limit(of_a_difference, {2: torch.ones(3).double()}, {1: torch.arange(1.0, 4.0).double()})
    assert [(t.degree, t.value.tolist()) for t in found.terms] == [(1, [1.0, 2.0, 3.0])]
