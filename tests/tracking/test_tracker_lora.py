"""`lora_update_norm` of a tracker against the whole product scale·BA in float64, step by step."""

import pytest
import torch
from tracking.lora_model import LoraModel
from tracking.tiny_training import backward

import normgrowth
from normgrowth.tracking.tracker import NormTracker

QUANTITY = "lora_update_norm"


def trained(model, steps=3, rescale_at=None, **options):
    """The tracker, and ‖scale·BA‖² of each adapter after every step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    history = {0: model.squares()}
    with NormTracker(model, optimizer, every=1, **options) as tracker:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            backward(model, step)
            if step == rescale_at:
                model.layers[0].mlp.up_proj.scaling["second"] = 3.0
            optimizer.step()
            history[step] = model.squares()
    return tracker, history


def values(records, step, level):
    rows = records.where(quantity=QUANTITY, step=step, level=level).table.to_pylist()
    return {row["name"]: row["value"] for row in rows}


def root(squares):
    return pytest.approx(sum(squares) ** 0.5, rel=1e-12)


def test_norms_are_those_of_the_product(tmp_path):
    torch.manual_seed(0)
    tracker, history = trained(LoraModel(), rescale_at=2, include="all", out=tmp_path / "run")
    assert history[1]["layers.0.mlp.up_proj.second"] < history[2]["layers.0.mlp.up_proj.second"]
    for records in (tracker.trace.records, normgrowth.load(tmp_path / "run").records):
        for step, squares in history.items():
            assert values(records, step, "tensor") == {name: root([s]) for name, s in squares.items()}
            assert values(records, step, "layer") == {
                f"layer.{i}": root(s for name, s in squares.items() if name.startswith(f"layers.{i}."))
                for i in range(2)
            }
            assert values(records, step, "model") == {"model": root(squares.values())}
    assert values(tracker.trace.records, 0, "model") == {"model": 0.0}  # B or A starts at 0
    assert values(tracker.trace.records, 3, "model")["model"] > 0


def test_adapters_that_do_not_count_are_left_out():
    torch.manual_seed(0)
    tracker, history = trained(LoraModel(), levels=["model"], exclude="mlp")
    records = tracker.trace.records
    expected = [square for name, square in history[3].items() if "q_proj" in name]
    assert values(records, 3, "model") == {"model": root(expected)}
    assert values(records, 3, "tensor") == {}


def test_a_run_that_is_resumed_and_what_is_logged(tmp_path):
    torch.manual_seed(0)
    model = LoraModel()
    trained(model, steps=2, out=tmp_path / "run")
    tracker, history = trained(model, steps=1, out=tmp_path / "run", resume_step=2)
    expected = root(square for name, square in history[1].items() if name != "embed_tokens")
    assert tracker.latest()[f"{QUANTITY}/model"] == expected
    records = normgrowth.load(tmp_path / "run").records.where(quantity=QUANTITY, level="model")
    assert records.distinct("step") == [0, 1, 2, 3]
    assert values(records, 3, "model") == {"model": expected}


def test_a_model_without_adapters_has_no_such_quantity():
    from tracking.tiny_training import tiny

    model = tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    with NormTracker(model, optimizer, every=1) as tracker:
        backward(model, 1)
        optimizer.step()
    assert QUANTITY not in tracker.trace.records.distinct("quantity")


def test_a_layer_without_a_scale_is_not_guessed():
    torch.manual_seed(0)
    model = LoraModel()
    forward = model.layers[0].self_attn.q_proj
    scales = forward.scaling
    del forward.scaling
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with NormTracker(model, optimizer, every=1) as tracker:
        forward.scaling = scales
        backward(model, 1)
        optimizer.step()
    found = values(tracker.trace.records, 1, "tensor")
    assert "layers.0.self_attn.q_proj" not in found
    assert "layers.1.self_attn.q_proj" in found
