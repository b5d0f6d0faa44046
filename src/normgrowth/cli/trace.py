"""normgrowth trace."""

from normgrowth.cli.command import Command

COMMAND = Command(
    verb="normgrowth.trace:trace",
    summary="measure norms, steps, directions and growth of a series of checkpoints",
    description="Read a series of checkpoints and measure norm, step size, cosine, angle, alignment and\n"
    "growth budget (how much of the growth of ‖θ‖² comes from the size of the steps, and how much from\n"
    "their alignment with the weights) of every tensor, layer, role and the model. Run the same command\n"
    "again to resume, or to add new checkpoints. Steps stay measured if their checkpoints are deleted.",
    examples="""  normgrowth trace runs/gpt/checkpoints -o traces/gpt
  normgrowth trace 'runs/gpt/step_*.safetensors' --include all
  normgrowth trace 'hf://EleutherAI/pythia-70m@step*' -o traces/pythia --tokens-per-step 2097152
  normgrowth trace 't5/model.ckpt-*' --include encoder --lags 1,10,100 -o traces/t5
  normgrowth trace gs://t5-data/pretrained_models/RUN --include encoder,decoder -o traces/t5""",
    resumes=True,
    counts_bytes=True,
    shown={"remarks": False},  # they went to stderr as warnings
)
