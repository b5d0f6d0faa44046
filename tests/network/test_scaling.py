"""`scaled_weights`: the weights are c times themselves within, and to the bit themselves after, come what may."""

import dis
import math
import os
import sys
from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from normgrowth.errors import InputError
from normgrowth.network import scaled_weights as scaling
from normgrowth.network.scaled_weights import scaled_weights

BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
POWERS = [1.0, 2.0, 1024.0, 2.0**40, 0.5, 2.0**-10, 2.0**-40, -4.0]


def bits(tensor):
    return tensor.detach().clone().view(BITS[tensor.dtype])


def of_bits(raw, dtype):
    """A tensor of any bit patterns: NaNs with payloads, −0.0 and subnormals among them."""
    width = 8 * dtype.itemsize
    signed = [x - (1 << width) if x >= 1 << (width - 1) else x for x in raw]
    return torch.tensor(signed, dtype=BITS[dtype]).view(dtype)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))


def snapshot(module):
    return {name: bits(tensor.double()) for name, tensor in module.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


# Any weights, any factor -----------------------------------------------------------------------------

factors = st.one_of(
    st.sampled_from(POWERS),
    st.integers(-1074, 1023).map(lambda k: math.ldexp(1, k)),
    st.floats(allow_nan=False, allow_infinity=False).filter(bool),
    st.floats(0.001, 2000),
)


@pytest.mark.parametrize("dtype", BITS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), c=factors)
def test_any_bits_come_back(dtype, data, c):
    top = (1 << 8 * dtype.itemsize) - 1
    ordinary = st.floats(-10, 10).map(lambda x: int(bits(torch.tensor(x, dtype=dtype))) & top)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, torch.finfo(dtype).smallest_normal, 3e-320]
    odd = st.sampled_from([int(bits(torch.tensor(x).to(dtype))) & top for x in special])
    raw = data.draw(st.lists(st.one_of(ordinary, odd, st.integers(0, top)), min_size=1, max_size=20))
    weight = nn.Parameter(of_bits(raw, dtype))
    before, values = bits(weight), weight.detach().clone()

    # The obvious way, on exact numbers: rounded once, it is within half a unit of the product.
    unit, limit = torch.finfo(dtype).eps, Fraction(torch.finfo(dtype).max)
    finite = [(Fraction(x.item()), i) for i, x in enumerate(values) if math.isfinite(x)]
    edge = limit * (1 + Fraction(unit) / 4)
    assume(not any(limit < abs(x * Fraction(c)) < edge for x, _ in finite))  # rounding decides there
    if any(abs(x * Fraction(c)) >= edge for x, _ in finite):
        with pytest.raises(InputError, match="overflows"), scaled_weights([weight], c):
            pass
        assert bits(weight).equal(before)
        return
    with scaled_weights([weight], c):
        assert weight.isnan().equal(values.isnan())
        for x, i in finite:
            error = abs(Fraction(weight[i].item()) - x * Fraction(c))
            subnormal = Fraction(torch.finfo(dtype).smallest_normal) * Fraction(unit)
            # c itself is rounded to float32 where that is what the dtype is multiplied in.
            rounding = Fraction(unit) + Fraction(torch.finfo(torch.float32).eps)
            assert error <= rounding * abs(x * Fraction(c)) + subnormal
    assert bits(weight).equal(before)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("c", [*POWERS, 1000, 1e-3, math.pi])
def test_within_the_block_it_is_the_product(dtype, c):
    weight = nn.Parameter(torch.linspace(-0.9, 0.9, 1000).to(dtype).reshape(10, 100))
    if dtype == torch.float16 and c == 2.0**40:
        with pytest.raises(InputError, match=r"0 overflows: 1\.09951e\+12 times .* largest torch\.float16"):
            scaled_weights([weight], c).__enter__()
        return
    before, product = bits(weight), weight.detach() * c
    with scaled_weights([weight], c):
        assert bits(weight).equal(bits(product))
    assert bits(weight).equal(before)


def test_flushed_subnormals_come_back():
    weight = nn.Parameter(torch.tensor([1e-40, 1.0] * 1000))
    before = bits(weight)
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this machine does not flush")
        with scaled_weights([weight], 1024):
            pass
    finally:
        torch.set_flush_denormal(False)
    assert bits(weight).equal(before)


# Copies ----------------------------------------------------------------------------------------------


class Allocations(TorchDispatchMode):
    """How many operations made a tensor as large as these, in memory of its own."""

    def __init__(self, *tensors):
        super().__init__()
        self.size = min(tensor.numel() for tensor in tensors)
        self.known = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in self.known:
            self.count += out.numel() >= self.size
        return out


@pytest.mark.parametrize(
    ("c", "value", "copies"),
    [
        (1024, 0.5, 0),
        (-(2.0**-10), 0.5, 0),
        (1024, 1e-42, 0),  # up and down again loses nothing
        (1024, math.inf, 0),
        (2.0**-10, 1e-37, 1),
        (1000, 0.5, 2),
    ],
)
def test_copies_are_made_only_where_bits_would_be_lost(c, value, copies):
    size = 4 * scaling.PIECE + 3
    plain = nn.Parameter(torch.full((size,), 0.25))
    other = torch.full((size,), 0.25)
    other[-1] = value
    other = nn.Parameter(other)
    with Allocations(plain, other) as allocations, scaled_weights([plain, other], c):
        pass
    assert allocations.count == copies


# Ways to leave, ways to enter ------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1000, 1024, 2.0**-3])
def test_exceptions_nesting_and_reuse(c):
    module = model()
    before = snapshot(module)
    with pytest.raises(ZeroDivisionError), scaled_weights(module, c):
        _ = 1 / 0
    assert same(snapshot(module), before)

    scaled = scaled_weights(module, c)
    for _ in range(2):
        with scaled as it:
            assert it is module
            once = snapshot(module)
            assert not same(once, before)
            with scaled:
                torch.testing.assert_close(module[0].weight, model()[0].weight * c * c)
                with scaled_weights(module, 7):
                    pass
            assert same(snapshot(module), once)
        assert same(snapshot(module), before)


def test_buffers_gradients_and_frozen_parameters():
    module = model()
    module(torch.randn(4, 5)).sum().backward()
    module[0].weight.requires_grad_(False)
    grads = {name: p.grad.clone() for name, p in module.named_parameters()}
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    frozen = module[0].weight.clone()
    with scaled_weights(module, 1000):
        torch.testing.assert_close(module[0].weight.data, frozen * 1000)
        assert not module[0].weight.requires_grad
        assert module[2].weight.requires_grad
        assert all(p.is_leaf for p in module.parameters())
        assert all(b.equal(buffers[name]) for name, b in module.named_buffers())
        assert all(p.grad.equal(grads[name]) for name, p in module.named_parameters())
    assert module[0].weight.equal(frozen)


@pytest.mark.parametrize("c", [1000, 1024])
def test_autograd_does_not_mix_the_two_networks(c):
    weight = nn.Parameter(torch.ones(3))
    tied = nn.Parameter(weight.data[:2])  # its version counter is its own
    outside, tied_outside = (weight**2).sum(), (tied**2).sum()
    with scaled_weights([weight, tied], c):
        inside = (weight**2).sum()
        (weight**2).sum().backward()
        assert weight.grad.equal(torch.full((3,), 2.0 * c))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outside.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            tied_outside.backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        inside.backward()


@pytest.mark.parametrize("c", [1000, 1024])
def test_inference_mode(c):
    with torch.inference_mode():
        inferred = model()
    ordinary = model()
    for module in (inferred, ordinary):
        before = snapshot(module)
        with scaled_weights(module, c), torch.inference_mode():
            assert not same(snapshot(module), before)
        with torch.inference_mode(), scaled_weights(module, c):
            assert not same(snapshot(module), before)
        assert same(snapshot(module), before)


def interrupted(function, at):
    """Run it with a KeyboardInterrupt before the at-th bytecode of what changes weights; False if there are
    fewer. Not before a return or a NOP: Python looks for signals after calls, jumps back, and at starts.
    """
    seen = 0

    def tracer(frame, event, _):
        nonlocal seen
        code = frame.f_code
        if code.co_filename != scaling.__file__ or code.co_name not in ("__enter__", "make", "_undo", "undo"):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and not dis.opname[code.co_code[frame.f_lasti]].startswith(("RETURN", "NOP")):
            seen += 1
            if seen == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        with suppress(KeyboardInterrupt):  # ours, or none if the function ended before
            function()
    finally:
        sys.settrace(old)
    return seen >= at


@pytest.mark.parametrize("c", [1000, 1024])
def test_an_interruption_anywhere_while_entering_restores(c):
    flat = torch.arange(1.0, 13.0)
    parameters = [nn.Parameter(flat[:4]), nn.Parameter(flat[4:6]), nn.Parameter(flat[6:].view(3, 2)[:, 0])]
    before = flat.clone()
    at = 0
    more = True
    while more:
        at += 1
        outer = scaled_weights(parameters, c)
        with outer:  # its own entry must survive that of the same object within
            once = flat.clone()
            entered = []
            more = interrupted(lambda o=outer, e=entered: e.append(o.__enter__()), at)
            if entered:
                outer.__exit__()
            assert flat.equal(once), at
        assert flat.equal(before), at
    assert at > 100


@pytest.mark.parametrize("c", [1000, 1024])
def test_an_interruption_while_scaling_back_restores(c):
    flat = torch.arange(1.0, 13.0)
    parameters = [nn.Parameter(flat[:4]), nn.Parameter(flat[4:6]), nn.Parameter(flat[6:].view(3, 2)[:, 0])]
    before = flat.clone()
    changes = None
    at = 0
    more = True
    while more:
        at += 1
        scaled = scaled_weights(parameters, c)
        scaled.__enter__()
        changes = scaled.entries[-1]
        more = interrupted(lambda ch=changes: scaling._undo(ch), at)
        scaling._undo(changes)  # what __exit__ does after an interruption
        assert flat.equal(before), at


# Shared memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1000, 1024])
def test_tied_weights_are_scaled_once(c):
    module = nn.ModuleDict({"tokens": nn.Embedding(6, 4), "head": nn.Linear(4, 6, bias=False)})
    module["head"].weight = module["tokens"].weight
    before = module["head"].weight.detach().clone()
    for select in (None, "tokens", "head", "tokens|head"):
        with scaled_weights(module, c, select):
            assert module["tokens"].weight.equal(before * c)
        assert module["head"].weight.equal(before)


shapes = {
    "the same": [((4, 6), (6, 1), 0), ((4, 6), (6, 1), 0)],
    "a transpose": [((4, 6), (6, 1), 0), ((6, 4), (1, 6), 0)],
    "a part": [((24,), (1,), 0), ((5,), (1,), 3)],
    "overlapping": [((10,), (1,), 0), ((10,), (1,), 5), ((3,), (1,), 20)],
    "columns": [((4, 3), (6, 1), 0), ((4, 3), (6, 1), 2)],
    "interleaved": [((12,), (2,), 0), ((12,), (2,), 1)],
    "every third": [((8,), (3,), 1)],
    "expanded": [((3, 4), (0, 1), 2)],
    "expanded scalar": [((5,), (0,), 7)],
    "folded with holes": [((2, 2, 2), (1, 1, 5), 0)],
    "side by side": [((5,), (1,), 0), ((5,), (1,), 5)],
    "transposed alone": [((6, 4), (1, 6), 0)],
    "empty": [((0, 3), (3, 1), 4), ((2,), (1,), 0)],
}


@pytest.mark.parametrize("c", [1000, 1024])
@pytest.mark.parametrize("views", shapes.values(), ids=shapes)
def test_each_element_of_shared_memory_is_scaled_once_and_no_other(views, c):
    flat = torch.linspace(0.1, 0.9, 24, dtype=torch.float64)
    before = flat.clone()
    parameters = [nn.Parameter(flat.as_strided(*view)) for view in views]
    wanted = before.clone()
    for place in {int(i) for view in views for i in torch.arange(24).as_strided(*view).flatten()}:
        wanted[place] *= c
    with scaled_weights(parameters, c):
        assert flat.equal(wanted)
    assert flat.equal(before)


def test_memory_shared_across_storages_or_dtypes_is_refused():
    array = np.zeros(10, np.float32)
    two = [nn.Parameter(torch.from_numpy(array[:6])), nn.Parameter(torch.from_numpy(array[3:]))]
    with pytest.raises(InputError, match="1 shares memory with 0"), scaled_weights(two, 2):
        pass
    flat = torch.zeros(8)
    with (
        pytest.raises(InputError, match="1 shares memory with 0"),
        scaled_weights([flat, flat.view(torch.float64)]),
    ):
        pass


# What can be given -----------------------------------------------------------------------------------


def test_kinds_of_parameters():
    module = model()
    before = snapshot(module)
    wanted = {name: p.detach() * 3 for name, p in module.named_parameters()}
    for given_ in (
        module,
        module.parameters(),
        list(module.parameters()),
        module.named_parameters(),
        dict(module.named_parameters()),
    ):
        scaled = scaled_weights(given_, 3)
        for _ in range(2):  # iterators too can be entered again
            with scaled:
                assert all(p.equal(wanted[name]) for name, p in module.named_parameters())
            assert same(snapshot(module), before)
    with scaled_weights(module[0].weight, np.float32(3)):
        assert module[0].weight.equal(wanted["0.weight"])
    with scaled_weights(nn.ReLU(), 3):
        pass


def test_a_module_is_looked_up_at_each_entry():
    module = nn.Linear(2, 2)
    scaled = scaled_weights(module, 10)
    module.weight = nn.Parameter(torch.ones(2, 2))
    with scaled:
        assert module.weight.equal(torch.full((2, 2), 10.0))


@pytest.mark.parametrize("select", [r"^\d\.weight", lambda name: name.endswith("weight")])
def test_select(select):
    module = model()
    reference = model()
    with scaled_weights(module, 8, select):
        for name, parameter in module.named_parameters():
            assert parameter.equal(reference.get_parameter(name) * (8 if "weight" in name else 1))


@pytest.mark.parametrize("c", [0, -0.0, math.nan, math.inf, -math.inf, 1j, 10**400, "2", None, True])
def test_factors_that_make_no_sense(c):
    with pytest.raises(InputError, match="c must be"):
        scaled_weights(model(), c)


@pytest.mark.parametrize(
    ("given_", "options", "message"),
    [
        (3, {}, "got int"),
        (iter([]), {}, "no parameters were given"),
        ([torch.ones(2), "x"], {}, "entry 1 is 'x'"),
        (model(), dict(include="("), "not a regular expression"),
        (model(), dict(include=3), "include must be"),
        (model(), dict(include="nothing"), r"none of the 6 parameters \(0.weight"),
        ({"w": torch.ones(2, dtype=torch.int8)}, {}, r"w is a Tensor of int8.*leave it out"),
        ({"w": torch.ones(2, dtype=torch.complex64)}, {}, "w is a Tensor of complex64"),
        ({"w": torch.ones(2).to(torch.float8_e4m3fn)}, {}, "w is a Tensor of float8"),
        ({"w": torch.eye(2).to_sparse()}, {}, "sparse_coo"),
        (nn.Linear(2, 2, device="meta"), {}, "weight is on the meta device"),
        (nn.LazyLinear(2), {}, "weight is not initialized"),
        ({"good": torch.ones(2), "bad": torch.full((2,), 1e38)}, {}, "bad overflows: 1000 times 1e"),
        ({"bad": torch.tensor([math.inf, math.nan, -1e38])}, {}, "bad overflows: 1000 times 1e"),
        ({"bad": torch.tensor([1e-3])}, dict(c=1e300), "bad overflows"),
    ],
)
def test_what_cannot_be_scaled_is_said_before_anything_changes(given_, options, message):
    tensors = list(given_.values()) if isinstance(given_, dict) else []
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(InputError, match=message), scaled_weights(given_, **options):
        pass
    for tensor, old in zip(tensors, before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0, equal_nan=True)


def test_integers_are_left_out_by_select():
    table = {"weight": torch.ones(2), "packed": torch.ones(2, dtype=torch.uint8)}
    with scaled_weights(table, 5, "weight"):
        assert table["weight"].equal(torch.full((2,), 5.0))


def test_a_failure_half_way_restores(monkeypatch):
    module = model()
    before = snapshot(module)
    make = scaling._Change.make

    def failing(self):
        make(self)
        if self.stretch.row.numel() == 21:
            raise MemoryError

    monkeypatch.setattr(scaling._Change, "make", failing)
    for c in (1000, 1024):
        with pytest.raises(MemoryError), scaled_weights(module, c):
            pass
        assert same(snapshot(module), before)


@pytest.mark.filterwarnings("default")
def test_of_a_sharded_tensor_each_process_scales_its_part():
    from torch import distributed
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    os.environ.setdefault("MASTER_ADDR", "localhost")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
        with scaled_weights([weight], 1000):
            assert weight.full_tensor().equal(torch.full((4, 3), 1000.0))
        assert weight.full_tensor().equal(torch.ones(4, 3))
    finally:
        distributed.destroy_process_group()
