"""Train a 4-layer GPT-2 on Python's documentation and save a small series of checkpoints.

    python examples/tiny_series.py demo/checkpoints [--steps 300] [--every 10]

The text is `pydoc_data.topics`, which is part of CPython, so nothing is downloaded. Hugging Face's `save_pretrained`
writes each checkpoint.
"""

import argparse
import math
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import torch
from rich.progress import track
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

VOCABULARY, WINDOW, BATCH = 2000, 64, 16


def read_text() -> torch.Tensor:
    """Return the documentation as word ids; words outside the vocabulary get id 0."""
    words = " ".join(topics[topic] for topic in sorted(topics)).split()
    number = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(VOCABULARY - 1))}
    return torch.tensor([number.get(word, 0) for word in words])


def make_series(folder: Path, steps: int = 300, every: int = 10, seed: int = 0) -> list[float]:
    """Train, save a checkpoint every few steps (and before the first), and return the losses in nats per word."""
    torch.manual_seed(seed)
    text = read_text()
    logging.disable_progress_bar()  # avoid one progress bar per checkpoint
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=WINDOW,
        n_embd=64,
        n_layer=4,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    losses = []
    for step in track(range(steps + 1), description="training", transient=True):
        if step % every == 0:
            model.save_pretrained(folder / f"checkpoint-{step}")
        if step == steps:
            break
        starts = torch.randint(len(text) - WINDOW, (BATCH,)).tolist()
        batch = torch.stack([text[start : start + WINDOW] for start in starts])
        logits = model(batch).logits[:, :-1]  # predictions of the next word, for all words but the last
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="output folder for the checkpoints")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10)
    arguments = parser.parse_args()
    losses = make_series(arguments.folder, arguments.steps, arguments.every)
    print(
        f"loss {losses[0]:.2f} -> {losses[-1]:.2f} nats per word (a uniform guess has {math.log(VOCABULARY):.2f})"
    )
    print(f"checkpoints: {arguments.folder}")


if __name__ == "__main__":
    main()
