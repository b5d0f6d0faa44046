"""A training script for tests of kills: it saves its state at each step, and resumes from there."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_model
from tracking.tiny_training import backward, tiny

from normgrowth import NormTracker


def main(folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    model = tiny(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state, step = folder / "state.pt", 0
    if state.exists():
        kept = torch.load(state, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    with NormTracker(model, optimizer, every=1, out=folder / "norms", run="run", resume_step=step):
        while step < steps:
            step += 1
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            new = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(new, folder / "state.part")
            os.replace(folder / "state.part", state)
    save_model(model, str(folder / "model.safetensors"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
