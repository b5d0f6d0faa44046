"""Track norms in Lightning with a callback, which also logs them to every logger of the Trainer.

python examples/track_lightning.py runs/lightning [--steps 40]
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from normgrowth.tracking.integrations.lightning import NormCallback

WINDOW = 32


class Language(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(vocab_size=128, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2)
        self.network = GPT2LMHeadModel(config)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.network(input_ids=batch[0], labels=batch[0]).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)


def windows() -> TensorDataset:
    """Return Python's documentation as windows of bytes."""
    text = " ".join(topics[topic] for topic in sorted(topics)).encode("ascii", "replace")[:20_000]
    return TensorDataset(torch.tensor(list(text)).unfold(0, WINDOW, WINDOW))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    pl.seed_everything(0)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=arguments.steps,
        accumulate_grad_batches=2,
        logger=CSVLogger(arguments.out, name="logs", version=0),
        callbacks=[NormCallback(every=5, out=str(arguments.out / "norms"))],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Language(), DataLoader(windows(), batch_size=8))


if __name__ == "__main__":
    main()
