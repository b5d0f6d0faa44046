"""normgrowth parameters."""

from normgrowth.cli.command import Command
from normgrowth.cli.options import Option

COMMAND = Command(
    verb="normgrowth.parameters:parameters",
    summary="list the tensors of a checkpoint: layer, role, counted or not",
    description="List the tensors of the first checkpoint: layer and role of each, and whether norms count it.",
    examples="""  normgrowth parameters model.safetensors
  normgrowth parameters runs/t5 --include encoder --json""",
    own={"out": Option("output folder", "DIR", short="-o")},
)
