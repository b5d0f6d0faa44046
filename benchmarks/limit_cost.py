"""Measure the cost of the exact limit relative to a plain pass: processor time, wall-clock time, peak memory.

python benchmarks/limit_cost.py                        print every ratio
python benchmarks/limit_cost.py peak ATTENTION ORDERS  print the peak memory of one pass, in MB; ORDERS 0: a plain pass
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from normgrowth.engine import code_digest
from normgrowth.limit.saturated import saturated

WIDE: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
PARTIAL = Path(__file__).parent / "limit_cost.partial.json"  # measurements of an interrupted run
LONG = 2048  # tokens of the text for the memory benchmark
Models = dict[str, Callable[[], nn.Module]]


def base_models() -> Models:
    import transformers as t

    return {
        "BERT-base": lambda: t.BertModel(t.BertConfig()),
        "GPT-2 small": lambda: t.GPT2Model(t.GPT2Config()),
        "Llama of 100M": lambda: t.LlamaModel(
            t.LlamaConfig(**WIDE, intermediate_size=2048, vocab_size=32000)
        ),
        "T5 encoder base": lambda: t.T5EncoderModel(
            t.T5Config(d_model=768, num_layers=12, num_heads=12, d_ff=3072)
        ),
    }


def tiny_models() -> Models:
    import transformers as t

    return {
        "BERT": lambda: t.BertModel(t.BertConfig(**TINY)),
        "GPT-2": lambda: t.GPT2Model(t.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100)),
        "Llama": lambda: t.LlamaModel(t.LlamaConfig(**TINY)),
        "T5 encoder": lambda: t.T5EncoderModel(
            t.T5Config(d_model=32, num_layers=2, num_heads=4, d_ff=64, d_kv=8, vocab_size=100)
        ),
        "MPNet": lambda: t.MPNetModel(t.MPNetConfig(**TINY)),
        "RoBERTa": lambda: t.RobertaModel(t.RobertaConfig(**TINY)),
        "XLNet": lambda: t.XLNetModel(
            t.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=100)
        ),
        "OLMo 2": lambda: t.Olmo2Model(t.Olmo2Config(**TINY)),
        "Mixtral": lambda: t.MixtralModel(t.MixtralConfig(**TINY, num_key_value_heads=2)),
        "Gemma 2": lambda: t.Gemma2Model(t.Gemma2Config(**TINY, num_key_value_heads=2, head_dim=8)),
        "BLOOM": lambda: t.BloomModel(t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=100)),
    }


def ratios(
    make: Callable[[], nn.Module], ids: torch.Tensor, orders: int, rounds: int, passes: int
) -> tuple[float, float]:
    """Return the time of the limit relative to a plain pass, processor and clock: medians of alternating rounds."""
    torch.manual_seed(0)
    model = make().eval()
    limit = saturated(model, orders=orders)
    found: list[tuple[float, float]] = []
    for _ in range(rounds + 1):  # the first warms up
        marks = [(time.process_time(), time.perf_counter())]
        for run in (model, limit):
            with torch.no_grad():
                for _ in range(passes):
                    run(input_ids=ids)
            marks.append((time.process_time(), time.perf_counter()))
        start, middle, end = marks
        found.append(
            ((end[0] - middle[0]) / (middle[0] - start[0]), (end[1] - middle[1]) / (middle[1] - start[1]))
        )
    processor, clock = zip(*found[1:], strict=True)
    return statistics.median(processor), statistics.median(clock)


Figures = dict[str, float]


def tokens(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


def named(name: str, found: tuple[float, float]) -> Figures:
    return {
        f"{name}: processor time against a plain pass": found[0],
        f"{name}: clock against a plain pass": found[1],
    }


def mpnet() -> nn.Module:
    import transformers as t

    return t.MPNetModel(t.MPNetConfig())


def three_orders() -> Figures:
    """Measure a network with ties: time, and how many matrix products it takes."""
    few = tokens(5, 30, 8, 128)  # repeated words, so that scores tie
    found = named("limit of MPNet, three orders", ratios(mpnet, few, 3, rounds=2, passes=1))
    torch.manual_seed(0)
    model = mpnet().eval()
    with torch.no_grad(), Products() as plain:
        model(input_ids=few)
    with Products() as limit:
        saturated(model, orders=3)(input_ids=few)
    return found | {
        "limit of MPNet, three orders: matrix products": limit.count,
        "limit of MPNet, three orders: matrix products of a plain pass": plain.count,
        "limit of MPNet, three orders: multiplications against a plain pass": limit.work / plain.work,
    }


class Products(TorchDispatchMode):
    """Counts matrix products, and the multiplications in them."""

    NAMES = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::matmul")
    FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"

    def __init__(self) -> None:
        super().__init__()
        self.count = self.work = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name in self.NAMES:
            left, right = args[-2:]
            self.count += 1
            self.work += left.numel() * right.shape[-1]
        elif name == self.FUSED:  # scores, and their weights times the values
            query, key, value = args[:3]
            self.count += 2
            self.work += query.numel() * key.shape[-2] + query.shape[:-1].numel() * value[0, 0].numel()
        return func(*args, **(kwargs or {}))


def tiny() -> Figures:
    short = tokens(3, 100, 2, 16)
    found = [ratios(make, short, 1, rounds=7, passes=5) for make in tiny_models().values()]
    median, largest = (tuple(map(f, zip(*found, strict=True))) for f in (statistics.median, max))
    name = f"limit of {len(found)} tiny models"
    return named(f"{name}, median", median) | named(f"{name}, largest", largest)


def peak(attention: str, orders: int) -> float:
    """Return the peak memory of this process in MB after one pass of BERT-base over a long text."""
    import transformers as t

    torch.manual_seed(0)
    model: Any = t.BertModel(t.BertConfig(max_position_embeddings=LONG)).eval()
    model.set_attn_implementation(attention)
    ids = torch.randint(1000, 20000, (1, LONG), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        (saturated(model, orders=orders) if orders else model)(input_ids=ids)
    # Not getrusage: its peak includes that of the parent process.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def memory(attention: str, words: str) -> Figures:
    plain, one, three = (
        float(subprocess.check_output([sys.executable, __file__, "peak", attention, str(orders)]))
        for orders in (0, 1, 3)
    )
    name = f"limit of BERT-base, {LONG:,} tokens, {words}"
    return {
        f"{name}, one order: peak memory against a plain pass": one / plain,
        f"{name}, three orders: peak memory against a plain pass": three / plain,
        f"{name}, one order: peak memory, MB": one,
    }


def one_order(name: str) -> Figures:
    make = base_models()[name]
    return named(
        f"limit of {name}, one order", ratios(make, tokens(1000, 20000, 8, 128), 1, rounds=3, passes=1)
    )


def parts() -> dict[str, Callable[[], Figures]]:
    """The measurements by name. Each can be taken by itself."""
    return {
        **{name: partial(one_order, name) for name in base_models()},
        "MPNet": three_orders,
        "tiny models": tiny,
        "memory, eager": partial(memory, "eager", "eager attention"),
        "memory, fused": partial(memory, "sdpa", "fused attention"),
    }


def measured() -> Figures:
    """Take all measurements. An interrupted run resumes after the last complete one of the same code."""
    code = code_digest("limit")
    kept = json.loads(PARTIAL.read_text(encoding="utf-8")) if PARTIAL.exists() else {}
    found: dict[str, Figures] = kept["found"] if kept.get("code") == code else {}
    for name, measure in parts().items():
        if name not in found:
            found[name] = measure()
            PARTIAL.write_text(json.dumps({"code": code, "found": found}), encoding="utf-8")
        print(name, found[name], flush=True)
    PARTIAL.unlink(missing_ok=True)
    return {figure: value for figures in found.values() for figure, value in figures.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        print(peak(sys.argv[2], int(sys.argv[3])))
    else:
        measured()
