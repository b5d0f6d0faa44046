"""normgrowth parameters."""

from normgrowth.cli.command import Command

COMMAND = Command(
    verb="normgrowth.checkpoints.parameters.parameter_list:parameters",
    summary="list the tensors of a checkpoint: layer, role, counted or not",
    description="List how each tensor of the first checkpoint is read: its layer, its role, and whether it counts.",
    examples="""  normgrowth parameters model.safetensors
  normgrowth parameters runs/t5 --include encoder --json""",
)
