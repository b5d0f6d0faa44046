"""Tensors that do not change while others do: frozen by module, or stale alone."""

import itertools

import pytest
import torch
from synthetic_series import moved, tiny_state, write_series

from normgrowth.lint import lint

MATRIX = "transformer.h.1.mlp.c_fc.weight"


def trained(active, count, layers=4, size=0.01, dtype=torch.float32):
    """A random walk in which interval k moves only the tensors that `active(k, name)` accepts."""
    states = [tiny_state(layers=layers)]
    for k in range(1, count):
        then = moved(states[-1], k, size)
        states.append({name: then[name] if active(k, name) else x for name, x in states[-1].items()})
    return [{name: x.to(dtype) for name, x in state.items()} for state in states]


def layer(name):
    return int(name.split(".")[2]) if ".h." in name else None


def by_kind(findings):
    return {(f.severity, f.kind) for f in findings}


CYCLES = {
    "one layer at a time, the rest always": lambda k, name: layer(name) in (None, k * 7 % 4),
    "one layer at a time, nothing else": lambda k, name: layer(name) == k % 4,
    "each layer for two checkpoints": lambda k, name: layer(name) in (None, k // 2 % 4),
    "embedding, layers and head in turn": lambda k, name: (
        layer(name) == k % 6 if layer(name) is not None else ("wte" in name) == (k % 6 == 4) and k % 6 > 3
    ),
    "attention and feed-forward in turn": lambda k, name: ("mlp" in name) == (k % 2 == 0),
    "attention of one layer": lambda k, name: not ("h.1.attn" in name and k in (4, 5)),
    "norms for a while": lambda k, name: not ("ln_1" in name and k in (4, 5)),
    "one layer once": lambda k, name: not (layer(name) == 1 and k == 5),
    "embedding for a while": lambda k, name: not ("wte" in name and 4 <= k < 8),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CYCLES)
def test_modules_that_are_frozen_for_a_while_are_a_remark(tmp_path, case, dtype):
    states = trained(CYCLES[case], 17, dtype=dtype)
    found = lint(write_series(tmp_path, states))
    assert by_kind(found) <= {("remark", "frozen")}
    still = {
        name for name in states[0] for a, b in itertools.pairwise(states) if torch.equal(a[name], b[name])
    }
    assert len({f.name for f in found}) == len(found), "one for each"
    if dtype == torch.float32:  # in bfloat16 a gain may keep its values by rounding
        assert {f.name for f in found} == still


def test_all_tensors_of_a_layer_have_the_same_intervals(tmp_path):
    frozen = {2, 3, 6, 10, 11, 14, 16}
    states = trained(lambda k, name: not (layer(name) == 2 and k in frozen), 20)
    found = lint(write_series(tmp_path, states))
    assert {f.name for f in found} == {name for name in states[0] if layer(name) == 2}
    (why,) = {f.why for f in found}
    assert "100 to 300, 500 to 600, 900 to 1100 and 2 more" in why


def test_gradual_unfreezing_is_a_remark(tmp_path):
    states = trained(lambda k, name: layer(name) is not None and layer(name) >= 3 - k // 3, 16)
    found = lint(write_series(tmp_path, states))
    assert by_kind(found) <= {("remark", "frozen"), ("remark", "initial")}


@pytest.mark.parametrize("name", [MATRIX, "transformer.h.1.mlp.c_fc.bias", "transformer.h.1.ln_1.weight"])
@pytest.mark.parametrize("still", [1, 2, 10])
def test_a_tensor_that_stood_still_alone_between_moves_is_stale(tmp_path, name, still):
    states = trained(lambda k, other: not (other == name and 4 <= k < 4 + still), 18)
    (finding,) = lint(write_series(tmp_path, states))
    assert (finding.step, finding.name, finding.kind, finding.severity) == (400, name, "stale", "fault")
    assert f"300 to {300 + 100 * still}" in finding.why


@pytest.mark.parametrize("cycling", [False, True])
def test_a_stale_tensor_is_found_in_training_that_cycles_through_layers(tmp_path, cycling):
    def active(k, name):
        on = not cycling or layer(name) in (None, k // 3 % 4)
        return on and not (name == MATRIX and k == 16)

    found = lint(write_series(tmp_path, trained(active, 24)))
    assert [(f.step, f.name, f.kind) for f in found if f.severity == "fault"] == [(1600, MATRIX, "stale")]


def test_a_shard_that_cuts_through_a_layer_is_stale_with_all_its_tensors(tmp_path):
    def in_shard(name):
        return layer(name) == 2 or "h.1.mlp" in name

    states = trained(lambda k, name: not (in_shard(name) and k in (5, 6)), 12)
    found = lint(write_series(tmp_path, states))
    assert {(f.step, f.kind, f.severity) for f in found} == {(500, "stale", "fault")}
    assert {f.name for f in found} == {name for name in states[0] if in_shard(name)}


def test_experts_without_tokens_are_a_remark(tmp_path):
    def state(seed):
        generator = torch.Generator().manual_seed(seed)
        names = [f"model.layers.{i}.self_attn.{p}_proj.weight" for i in range(2) for p in "qkvo"]
        names += [
            f"model.layers.{i}.mlp.experts.{j}.w{w}.weight"
            for i, j, w in itertools.product(range(2), range(4), (1, 2, 3))
        ]
        return {name: torch.randn(8, 8, generator=generator) for name in names}

    states = [state(0)]
    for k in range(1, 12):
        step = state(k)
        idle = "layers.1.mlp.experts.3." if k in (5, 6) else "none"
        states.append({n: x if idle in n else x + 0.01 * step[n] for n, x in states[-1].items()})
    found = lint(write_series(tmp_path, states))
    assert by_kind(found) == {("remark", "frozen")}
    assert len(found) == 3
