"""`lora_update_norm` against the whole product scale·BA in float64, on checkpoints in the layout of PEFT."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import normgrowth
from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.parameters.adapters import AdapterConfig, find_adapters
from normgrowth.checkpoints.parameters.parameter_names import read_names
from normgrowth.errors import SeriesWarning
from normgrowth.trace.output.store import Store

PREFIX = "base_model.model.model"
RANK, WIDTH = 4, 12
QUANTITY = "lora_update_norm"
SHAPES = {
    f"{PREFIX}.layers.{layer}.{module}": (out, WIDTH)
    for layer in range(2)
    for module, out in (("self_attn.q_proj", 12), ("self_attn.v_proj", 6), ("mlp.up_proj", 24))
}


def factors(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for module, (rows, columns) in SHAPES.items():
        state[f"{module}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator).to(dtype)
        state[f"{module}.lora_B.weight"] = 0.1 * torch.randn(rows, RANK, generator=generator).to(dtype)
    state[f"{PREFIX}.embed_tokens.lora_embedding_A"] = torch.randn(RANK, 50, generator=generator)
    state[f"{PREFIX}.embed_tokens.lora_embedding_B"] = torch.randn(WIDTH, RANK, generator=generator)
    return state


def write(folder, states, **config):
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "use_rslora": False, **config}
    for step, state in states.items():
        place = folder / f"checkpoint-{step}"
        place.mkdir(parents=True)
        save_file(state, place / "adapter_model.safetensors")
        (place / "adapter_config.json").write_text(json.dumps(config))
    return folder


def squares(state, scale):
    """Module -> ‖scale·BA‖², from the product itself."""
    found = {}
    for name, up in state.items():
        if ".lora_B" in name or ".lora_embedding_B" in name:
            module = name.split(".lora_")[0]
            down = state[name.replace("lora_B", "lora_A").replace("embedding_B", "embedding_A")]
            product = up.double().flatten(1) @ down.double().flatten(1)
            found[module] = (scale(module) ** 2 * product.square().sum()).item()
    return found


def values(trace, step, level):
    rows = trace.records.where(quantity=QUANTITY, step=step, level=level).table.to_pylist()
    return {row["name"]: row["value"] for row in rows}


def expected(found, level):
    """By level: the root of the sum of the squares."""
    key = {
        "tensor": lambda name: name,
        "layer": lambda name: f"layer.{name.split('.layers.')[1][0]}" if ".layers." in name else None,
        "model": lambda name: "model",
    }[level]
    sums: dict[str, float] = {}
    for name, square in found.items():
        if key(name) is not None:
            sums[key(name)] = sums.get(key(name), 0.0) + square
    return {name: pytest.approx(square**0.5, rel=1e-12) for name, square in sums.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, lambda module: 4.0),
        ({"use_rslora": True}, lambda module: 8.0),
        ({"alpha_pattern": {"v_proj": 2}}, lambda module: 0.5 if "v_proj" in module else 4.0),
        (
            {"alpha_pattern": {"^model.layers.1.mlp.up_proj": 2, "j": 9}},
            lambda module: 0.5 if "1.mlp" in module else 4.0,
        ),
    ],
)
def test_norms_are_those_of_the_product(tmp_path, dtype, config, scale):
    states = {step: factors(step, dtype) for step in (10, 20)}
    traced = normgrowth.trace(write(tmp_path, states, **config))
    for step, state in states.items():
        found = squares(state, scale)
        found.pop(f"{PREFIX}.embed_tokens")  # not in a block
        for level in ("tensor", "layer", "model"):
            assert values(traced, step, level) == expected(found, level)


def test_each_adapter_has_the_layer_and_role_of_its_matrix(tmp_path):
    traced = normgrowth.trace(write(tmp_path, {1: factors(1), 2: factors(2)}), include="all")
    rows = traced.records.where(quantity=QUANTITY, level="tensor", step=1).table.to_pylist()
    places = {row["name"].removeprefix(f"{PREFIX}."): (row["layer"], row["role"]) for row in rows}
    assert places == {
        **{f"layers.{i}.self_attn.q_proj": (i, "attention.query") for i in range(2)},
        **{f"layers.{i}.self_attn.v_proj": (i, "attention.value") for i in range(2)},
        **{f"layers.{i}.mlp.up_proj": (i, "feedforward") for i in range(2)},
        "embed_tokens": (None, "embedding"),
    }
    state = squares(factors(1), lambda module: 4.0)
    assert values(traced, 1, "tensor") == expected(state, "tensor")
    assert values(traced, 1, "model") == expected(state, "model")


def test_a_rank_of_its_own(tmp_path):
    state = factors(1)
    module = f"{PREFIX}.layers.0.mlp.up_proj"
    state[f"{module}.lora_A.weight"] = torch.randn(2, WIDTH)
    state[f"{module}.lora_B.weight"] = torch.randn(24, 2)
    write(tmp_path, {1: state, 2: state}, rank_pattern={"layers.0.mlp.up_proj": 2})
    traced = normgrowth.trace(tmp_path, lint=False)
    found = squares(state, lambda name: 8.0 if name == module else 4.0)
    assert values(traced, 1, "tensor")[module] == pytest.approx(found[module] ** 0.5, rel=1e-12)


@pytest.mark.parametrize("config", [{"r": 3}, {"alpha_pattern": {"(v|k)_proj": 2}}])
def test_a_scale_that_is_not_certain_is_nan_with_a_note(tmp_path, config):
    write(tmp_path, {1: factors(1), 2: factors(2)}, **config)
    with pytest.warns(SeriesWarning, match="scale does not follow from adapter_config.json"):
        traced = normgrowth.trace(tmp_path, lint=False)
    assert np.isnan(list(values(traced, 1, "tensor").values())).all()


def test_without_its_config_nothing_is_reported(tmp_path):
    write(tmp_path, {1: factors(1), 2: factors(2)})
    for path in tmp_path.glob("*/adapter_config.json"):
        path.unlink()
    with pytest.warns(SeriesWarning, match="lora_update_norm needs the scale.*adapter_config.json"):
        traced = normgrowth.trace(tmp_path, lint=False)
    assert QUANTITY not in traced.records.distinct("quantity")
    assert "norm" in traced.records.distinct("quantity")


def test_what_was_measured_stays_when_checkpoints_are_gone(tmp_path):
    series = write(tmp_path / "run", {step: factors(step) for step in (1, 2, 3)})
    before = normgrowth.trace(series, tmp_path / "out", lint=False)
    shutil.rmtree(series / "checkpoint-1")
    with pytest.warns(SeriesWarning, match="checkpoints no longer exist"):
        after = normgrowth.trace(series, tmp_path / "out", lint=False)
    assert len(values(after, 1, "tensor")) == 6
    for step in (1, 2, 3):
        assert values(after, step, "tensor") == values(before, step, "tensor")


def test_folders_without_updates_get_them(tmp_path):
    """The sums of each step are there, the updates are not."""
    series = write(tmp_path / "run", {step: factors(step) for step in (1, 2)})
    whole = normgrowth.trace(series, tmp_path / "out", lint=False)
    store = Store(tmp_path / "out")
    for stored in store.load().values():
        assert stored is not None
        assert stored.updates is not None
        store.save(replace(stored, updates=None))
    again = normgrowth.trace(series, tmp_path / "out", lint=False)
    for step in (1, 2):
        assert values(again, step, "tensor") == values(whole, step, "tensor") != {}
    assert all(stored and stored.updates is not None for stored in store.load().values())


def test_names_of_a_model_and_shapes_that_are_no_product():
    block = f"{PREFIX}.layers.0.self_attn"
    shapes = {
        f"{block}.q_proj.base_layer.weight": (8, 8),
        f"{block}.q_proj.lora_A.default.weight": (2, 8),
        f"{block}.q_proj.lora_B.default.weight": (8, 2),
        f"{block}.q_proj.lora_B.default.bias": (8,),
        f"{block}.q_proj.lora_A.second.weight": (3, 8),
        f"{block}.q_proj.lora_B.second.weight": (8, 3),
        f"{block}.conv.lora_A.weight": (2, 8, 3, 3),
        f"{block}.conv.lora_B.weight": (8, 2, 1, 1),
        f"{block}.k_proj.lora_A.weight": (2, 8),  # its B is missing
        f"{block}.v_proj.lora_A.weight": (2, 8),
        f"{block}.v_proj.lora_B.weight": (8, 4),  # not of this A
    }
    readings = read_names({name: Tensor("F32", shape) for name, shape in shapes.items()})
    adapters = find_adapters(list(readings.values()), shapes)
    assert [(adapter.name, adapter.rank) for adapter in adapters] == [
        (f"{block}.q_proj", 2),
        (f"{block}.q_proj.second", 3),
        (f"{block}.conv", 2),
    ]
    assert {readings[name].role for name in shapes if "q_proj" in name} == {"attention.query"}
    config = AdapterConfig(r=2, lora_alpha=6)
    assert [config.scale(adapter) for adapter in adapters] == [3.0, None, 3.0]
