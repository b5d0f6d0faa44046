"""normgrowth compare."""

from normgrowth.cli.command import Command
from normgrowth.cli.options import Option

COMMAND = Command(
    verb="normgrowth.compare:compare",
    summary="compare two traces: norm, growth, direction and budget of each layer",
    description="Compare two traces at the last step that both have: norm, growth, direction and budget per layer.",
    examples="""  normgrowth compare traces/adamw traces/sgd
  normgrowth compare traces/ddp traces/fsdp --json""",
    positional=("a", "b"),
    own={
        "a": Option("output folder of a trace", "A"),
        "b": Option("output folder of another trace", "B"),
    },
)
