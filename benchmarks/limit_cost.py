"""Measure the cost of the exact limit relative to a plain pass: processor time, wall-clock time, peak memory.

python benchmarks/limit_cost.py                        print every ratio
python benchmarks/limit_cost.py peak ATTENTION ORDERS  print the peak memory of one pass, in MB; ORDERS 0: a plain pass
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normgrowth.limit.saturated import saturated

WIDE: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
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


def times() -> dict[str, float]:
    """Measure one order for base-size and tiny models, and three orders for a network with ties."""
    import transformers as t

    draws = torch.Generator().manual_seed(1)
    figures: dict[str, float] = {}

    def keep(name: str, found: tuple[float, float]) -> None:
        figures[f"{name}: processor time against a plain pass"] = found[0]
        figures[f"{name}: clock against a plain pass"] = found[1]
        print(name, found, flush=True)

    for name, make in base_models().items():
        ids = torch.randint(1000, 20000, (8, 128), generator=draws)
        keep(f"limit of {name}, one order", ratios(make, ids, 1, rounds=3, passes=1))
    few = torch.randint(5, 30, (8, 128), generator=draws)  # repeated words, so that scores tie
    keep(
        "limit of MPNet, three orders",
        ratios(lambda: t.MPNetModel(t.MPNetConfig()), few, 3, rounds=2, passes=1),
    )
    short = torch.randint(3, 100, (2, 16), generator=draws)
    tiny = {name: ratios(make, short, 1, rounds=7, passes=5) for name, make in tiny_models().items()}
    keep(
        f"limit of {len(tiny)} tiny models, median",
        tuple(map(statistics.median, zip(*tiny.values(), strict=True))),
    )
    keep(f"limit of {len(tiny)} tiny models, largest", tuple(map(max, zip(*tiny.values(), strict=True))))
    return figures


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


def memory() -> dict[str, float]:
    figures: dict[str, float] = {}
    for attention, words in (("eager", "eager attention"), ("sdpa", "fused attention")):
        plain, one, three = (
            float(subprocess.check_output([sys.executable, __file__, "peak", attention, str(orders)]))
            for orders in (0, 1, 3)
        )
        name = f"limit of BERT-base, {LONG:,} tokens, {words}"
        figures[f"{name}, one order: peak memory against a plain pass"] = one / plain
        figures[f"{name}, three orders: peak memory against a plain pass"] = three / plain
        figures[f"{name}, one order: peak memory, MB"] = one
        print(name, plain, one, three, flush=True)
    return figures


def measured() -> dict[str, float]:
    return times() | memory()


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        print(peak(sys.argv[2], int(sys.argv[3])))
    else:
        measured()
