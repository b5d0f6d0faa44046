"""Track norms in a plain PyTorch loop and log them to TensorBoard and Weights & Biases (offline).

python examples/track_plain.py runs/plain [--steps 40] [--wandb]
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import GPT2Config, GPT2LMHeadModel

import normgrowth

WINDOW = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--wandb", action="store_true", help="also log to Weights & Biases, offline")
    arguments = parser.parse_args()

    text = " ".join(topics[topic] for topic in sorted(topics)).encode("ascii", "replace")[:20_000]
    ids = torch.tensor(list(text))
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    board = SummaryWriter(str(arguments.out / "logs"))
    run = None
    if arguments.wandb:
        import wandb

        run = wandb.init(project="normgrowth", dir=str(arguments.out), mode="offline")

    with normgrowth.NormTracker(model, optimizer, every=5, out=arguments.out / "norms") as tracker:
        for step in range(1, arguments.steps + 1):
            start = torch.randint(len(ids) - WINDOW, (8,))
            batch = torch.stack([ids[s : s + WINDOW] for s in start])
            optimizer.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            if values := tracker.latest():  # the values of this step, if it was measured
                for name, value in values.items():
                    board.add_scalar(name, value, step)
                if run is not None:
                    run.log(values, step=step)
    board.close()
    if run is not None:
        run.finish()


if __name__ == "__main__":
    main()
