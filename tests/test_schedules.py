"""Schedules: what other training code uses, to the bit where it can be; integrals against scipy; text."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from normgrowth import schedules
from normgrowth.errors import InputError
from normgrowth.schedules import Schedule, constant, cosine, inverse_sqrt, linear, parse

TABLE = [
    constant(3e-4),
    constant(3e-4, warmup=7),
    linear(1e-3, 100),
    linear(1e-3, 100, warmup=13, end=1e-4),
    cosine(1e-3, 100),
    cosine(1e-3, 100, warmup=13, end=2e-4),
    inverse_sqrt(1.0),
    inverse_sqrt(5e-4, warmup=40),
    inverse_sqrt(0.01, hold=50),
    inverse_sqrt(0.01, warmup=20, hold=50),
]
each = pytest.mark.parametrize("schedule", TABLE, ids=str)


@st.composite
def any_schedule(draw):
    warmup = draw(st.integers(0, 50))
    lr = draw(st.floats(1e-6, 10))
    end = draw(st.floats(0, 1)) * lr
    steps = warmup + draw(st.integers(1, 300))
    return draw(
        st.sampled_from(
            [
                constant(lr, warmup=warmup),
                linear(lr, steps, warmup=warmup, end=end),
                cosine(lr, steps, warmup=warmup, end=end),
                inverse_sqrt(lr, warmup=warmup, hold=draw(st.integers(0, 100))),
            ]
        )
    )


def of_transformers(name, lr, **options):
    import transformers

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = getattr(transformers, f"get_{name}")(optimizer, **options)
    return lambda t: lr * scheduler.lr_lambdas[0](t)


@pytest.mark.parametrize(
    ("ours", "name", "options"),
    [
        (constant(3e-4, warmup=7), "constant_schedule_with_warmup", dict(num_warmup_steps=7)),
        (
            linear(1e-3, 100, warmup=13),
            "linear_schedule_with_warmup",
            dict(num_warmup_steps=13, num_training_steps=100),
        ),
        (
            cosine(1e-3, 100, warmup=13),
            "cosine_schedule_with_warmup",
            dict(num_warmup_steps=13, num_training_steps=100),
        ),
        (inverse_sqrt(5e-4, warmup=40), "inverse_sqrt_schedule", dict(num_warmup_steps=40)),
    ],
    ids=lambda x: str(x)[:30],
)
def test_they_are_those_of_transformers(ours, name, options):
    theirs = of_transformers(name, ours.lr, **options)
    t = np.arange(0, 100)
    np.testing.assert_allclose(ours(t), [theirs(int(step)) for step in t], rtol=1e-12, atol=1e-18)


def test_t5():
    t = np.array([0, 1, 9_999, 10_000, 10_001, 524_288])
    np.testing.assert_allclose(
        inverse_sqrt(0.01, hold=10_000)(t), 1 / np.sqrt(np.maximum(t, 1e4)), rtol=1e-14
    )


def test_the_paper_s_schedule_is_defined_at_0():
    eta = inverse_sqrt(1.0)
    assert (eta(0), eta(1), eta(4)) == (1, 1, 0.5)


def test_a_training_loop_begins_with_step_0():
    schedule = linear(1e-2, 4, warmup=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    seen = []
    for _ in range(6):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == [schedule(t) for t in range(6)] == [0, 5e-3, 1e-2, 5e-3, 0, 0]


@each
def test_numbers_and_arrays_agree(schedule):
    t = np.linspace(0, 300, 61)
    assert isinstance(schedule(3), float)
    assert isinstance(schedule.integral(3), float)
    np.testing.assert_array_equal(schedule(t), [schedule(float(x)) for x in t])
    for power in (1, 2):
        np.testing.assert_array_equal(
            schedule.integral(t, power), [schedule.integral(float(x), power) for x in t]
        )
    assert schedule([1, 2]).shape == (2,)


@settings(deadline=None)
@given(any_schedule(), st.floats(0, 1000), st.sampled_from([1, 2]))
def test_integrals_are_those_of_scipy(schedule, t, power):
    edges = [0.0, *(knot for knot in schedule.knots() if knot < t), t]
    unit = schedule.lr**power
    slow = sum(quad(lambda x: schedule(x) ** power / unit, a, b, epsrel=1e-11)[0] for a, b in pairwise(edges))
    assert schedule.integral(t, power) / unit == pytest.approx(slow, rel=1e-7, abs=1e-9)


@settings(deadline=None)
@given(any_schedule())
def test_rates_stay_between_0_and_the_peak(schedule):
    t = np.arange(0, 500)
    assert (schedule(t) >= 0).all()
    assert schedule(t).max() <= schedule.lr * (1 + 1e-12)
    peak = schedule.warmup
    assert schedule(peak) == pytest.approx(schedule.lr)
    assert (np.diff(schedule(t[peak:])) <= 1e-15).all()


def test_beyond_the_end_they_stay():
    assert linear(1e-3, 100, end=1e-4)(10**9) == pytest.approx(1e-4)
    assert cosine(1e-3, 100)(101) == 0
    assert cosine(1e-3, 100).integral(1e6) == cosine(1e-3, 100).integral(100)
    eta = linear(1e-3, 100, end=1e-4)
    assert eta.integral(300) - eta.integral(200) == pytest.approx(100 * 1e-4)


@settings(deadline=None)
@given(any_schedule())
def test_text_and_back(schedule):
    assert parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("3e-4", constant(3e-4)),
        ("constant:lr=3e-4", constant(3e-4)),
        (" cosine: lr=1e-3, steps=1e4, warmup=100 ", cosine(1e-3, 10_000, warmup=100)),
        ("inverse-sqrt:lr=0.01,hold=10000", inverse_sqrt(0.01, hold=10_000)),
        ("linear:lr=1,steps=10,end=.5", linear(1.0, 10, end=0.5)),
        *((example, parse(example)) for example in schedules.EXAMPLES.values()),
    ],
)
def test_text(text, schedule):
    assert parse(text) == schedule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step:lr=1", "'step' is neither one of constant, linear, cosine, inverse_sqrt nor a learning rate"),
        ("", "is neither one of"),
        ("3e-4x", r"'3e-4x' is neither one of .* nor a learning rate; examples: 3e-4, cosine:lr="),
        ("0.1,warmup=10", "examples: 3e-4, cosine:lr="),
        ("cosine", "lr is missing"),
        ("cosine:lr=1e-3", "steps is missing; example: cosine:lr="),
        ("cosine:lr=1e-3,steps=10,hold=3", "unknown option 'hold'; cosine takes lr, steps, warmup, end"),
        ("cosine:lr=fast,steps=10", "lr: 'fast' is not a number; example: cosine:lr=1e-3,steps"),
        ("cosine:lr,steps=10", "lr: it has no value"),
        ("cosine:lr=1,lr=2,steps=10", "lr is given twice"),
        ("cosine:lr=1,steps=10.5", "steps must be a whole number"),
        ("cosine:lr=1,steps=inf", "steps: 'inf' is not a number"),
        ("cosine:lr=1,steps=10,warmup=10", r"steps \(10\) must be greater than warmup \(10\)"),
        ("constant:lr=-1", "lr must be >= 0, got -1"),
        ("nan", "lr must be >= 0, got nan"),
        ("constant:lr=1,warmup=-2", "warmup must be a whole number"),
    ],
)
def test_bad_text_is_one_clear_line(text, said):
    with pytest.raises(InputError, match=said) as error:
        parse(text)
    assert "\n" not in str(error.value)


def test_bad_arguments():
    with pytest.raises(InputError, match="unknown schedule 'exotic'; choose one of constant"):
        Schedule("exotic", 1.0)
    for steps in (math.inf, math.nan, 10.5):
        with pytest.raises(InputError, match="steps must be a whole number"):
            linear(1.0, steps)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="step must be >= 0"):
        constant(1.0)(-1)
    with pytest.raises(InputError, match="step must be >= 0"):
        constant(1.0)([1.0, math.nan])
    with pytest.raises(InputError, match="power must be 1 or 2, got 3"):
        constant(1.0).integral(1, 3)
