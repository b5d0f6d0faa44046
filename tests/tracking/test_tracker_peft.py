"""`lora_update_norm` of models that PEFT made, against its own `get_delta_weight` in float64."""

from io import StringIO

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

import normgrowth as ng
from normgrowth.report.terminal.trace import show
from normgrowth.report.terminal.watch import watch_table
from normgrowth.tracking.tracker import NormTracker

QUANTITY = "lora_update_norm"
SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def lora(targets=("q_proj", "up_proj"), rank=4, **options):
    return LoraConfig(r=rank, lora_alpha=6, target_modules=list(targets), init_lora_weights=False, **options)


def adapted(**options):
    torch.manual_seed(0)
    return get_peft_model(LlamaForCausalLM(LlamaConfig(**SIZES)), lora(**options))


def of_peft(model):
    """Adapted module -> norm of its update; with the adapter behind it unless it is the default one."""
    found = {}
    for name, layer in model.double().named_modules():
        for adapter in getattr(layer, "lora_A", ()):
            short = name.removeprefix("base_model.model.")
            key = short if adapter == "default" else f"{short}.{adapter}"
            found[key] = layer.get_delta_weight(adapter).norm().item()
    return found


def tracked(model):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with NormTracker(model, optimizer, every=1) as tracker:
        for _ in range(2):
            optimizer.zero_grad()
            tokens = torch.randint(50, (2, 8))
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    return tracker.trace


def check(model, count):
    trace = tracked(model)
    rows = trace.records.where(quantity=QUANTITY, step=2, level="tensor").table.to_pylist()
    found = {row["name"].removeprefix("base_model.model."): row["value"] for row in rows}
    expected = of_peft(model)
    assert len(expected) == count
    assert found == pytest.approx(expected, rel=1e-12)
    return trace


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},  # the low-rank part only
        {"rank_pattern": {"up_proj": 8}, "alpha_pattern": {"q_proj": 3}},
    ],
    ids=["plain", "rslora", "dora", "patterns"],
)
def test_updates_are_those_of_peft(options):
    check(adapted(**options), 4)


def test_several_adapters_of_a_layer():
    model = adapted()
    model.add_adapter("second", lora(["q_proj"], rank=2))
    model.base_model.set_adapter(["default", "second"])
    check(model, 6)


def test_adapters_that_were_merged_and_unmerged():
    model = adapted()
    model.merge_adapter()
    model.unmerge_adapter()
    check(model, 4)


def test_the_terminal_and_the_page_show_the_updates(tmp_path):
    trace = check(adapted(), 4)
    norm = trace.records.series(QUANTITY)[1][-1]
    console = Console(file=StringIO(), width=200)
    console.print(watch_table(trace, console))
    assert f"{norm:.4g}" in console.file.getvalue()
    assert "LoRA" in console.file.getvalue()
    console = Console(file=StringIO(), width=250)
    show(trace, console)
    assert f"{norm:.4g}" in console.file.getvalue()
    ng.report([trace], tmp_path / "page.html")
    assert "LoRA updates" in (tmp_path / "page.html").read_text(encoding="utf-8")
