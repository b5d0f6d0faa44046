"""Real training in a second: a GPT-2 of two layers on Python's own manual, its weights kept at some steps."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

from normgrowth.trace.sampling.finding import Finding

State = dict[str, torch.Tensor]
EVERY = tuple(range(0, 61, 5))
VOCABULARY, WINDOW, BATCH = 500, 32, 8


@cache
def manual() -> torch.Tensor:
    """Python's own manual as word numbers."""
    words = " ".join(topics[topic] for topic in sorted(topics)).split()
    number = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1))}
    return torch.tensor([number.get(word, 0) for word in words])


def warm_up(step: int) -> float:
    return 4e-3 * min(1, step / 20)


def train(
    steps: Sequence[int] = EVERY,
    rate: Callable[[int], float] = warm_up,
    *,
    sgd: bool = False,
    freeze: Iterable[str] = (),
    until: int = 0,
    seed: int = 0,
    data: int = 0,
    dtype: torch.dtype = torch.float32,
    decay: float = 0.01,
) -> dict[int, State]:
    """Weights by step; what is frozen thaws at step `until`."""
    torch.manual_seed(seed)
    sizes = dict(vocab_size=VOCABULARY, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    frozen = [p for name, p in model.named_parameters() if any(part in name for part in freeze)]
    parameters = list(model.parameters())
    optimizer = (
        torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
        if sgd
        else torch.optim.AdamW(parameters, lr=1.0, weight_decay=decay)
    )
    text, generator = manual(), torch.Generator().manual_seed(data)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model is trained ten times as fast by one
    kept: dict[int, State] = {}
    for step in range(max(steps) + 1):
        for parameter in frozen:
            parameter.requires_grad_(0 < until <= step)
            parameter.grad = None
        if step in steps:
            state = {name: p.detach().to(dtype, copy=True) for name, p in model.named_parameters()}
            kept[step] = state
        starts = torch.randint(len(text) - WINDOW, (BATCH,), generator=generator).tolist()
        batch = torch.stack([text[start : start + WINDOW] for start in starts])
        logits = model(batch).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    assert math.isfinite(loss.item())
    return kept


def write(folder: Path, series: dict[int, State]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for step, state in series.items():
        save_file(
            {name: tensor.contiguous() for name, tensor in state.items()},
            folder / f"step_{step}.safetensors",
        )
    return folder


def faults(findings: Iterable[Finding]) -> list[tuple[int | None, str, str]]:
    return [(f.step, f.name, f.kind) for f in findings if f.severity == "fault"]


def remarks(findings: Iterable[Finding]) -> list[tuple[int | None, str, str]]:
    return [(f.step, f.name, f.kind) for f in findings if f.severity == "remark"]
