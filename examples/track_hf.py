"""Track norms in the Hugging Face Trainer with one callback, which also logs them to TensorBoard.

python examples/track_hf.py runs/hf [--steps 40]

Then `normgrowth watch runs/hf/norms`, `normgrowth plot runs/hf/norms`, or `tensorboard --logdir runs/hf/logs`.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from normgrowth import NormCallback

WINDOW = 32


def windows() -> list[dict[str, torch.Tensor]]:
    """Return Python's documentation as windows of bytes."""
    text = " ".join(topics[topic] for topic in sorted(topics)).encode("ascii", "replace")[:20_000]
    pieces = [torch.tensor(list(text[i : i + WINDOW])) for i in range(0, len(text) - WINDOW, WINDOW)]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=128, n_positions=WINDOW, n_embd=32, n_layer=2, n_head=2)
    settings = TrainingArguments(
        output_dir=str(arguments.out / "checkpoints"),
        max_steps=arguments.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,  # the records count optimizer steps
        learning_rate=3e-3,
        logging_steps=10,
        save_steps=20,
        report_to=["tensorboard"],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=windows())
    trainer.add_callback(NormCallback(every=5, out=str(arguments.out / "norms")).log_to(trainer))
    trainer.train(resume_from_checkpoint=arguments.resume or None)


if __name__ == "__main__":
    main()
