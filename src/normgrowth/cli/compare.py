"""normgrowth compare."""

from normgrowth.cli.command import Command
from normgrowth.cli.options import Option

COMMAND = Command(
    verb="normgrowth.compare:compare",
    summary="find where two runs diverge and why; compare their growth per layer",
    description="Find the first step and tensor at which two runs differ by more than rounding explains, and the\n"
    "cause: initialization, gradients, learning rate, weight decay, optimizer, data, rounding. Compare\n"
    "norm, growth, direction and budget per layer at the last step that both have.",
    examples="""  normgrowth compare runs/ddp/norms runs/fsdp/norms
  normgrowth compare runs/ddp/norms runs/fsdp/norms --control runs/ddp-again/norms
  normgrowth compare traces/adamw traces/sgd --json

Exit codes: 0 no difference beyond rounding; 1 the runs differ, or share no step or tensor;
2 nothing could be read.""",
    positional=("a", "b"),
    own={
        "out": Option("output folder", "DIR", short="-o"),
        "a": Option("output folder of a tracker or a trace", "A"),
        "b": Option("output folder of the run to compare it with", "B"),
        "control": Option(
            "output folder of a third run that should agree with A; its differences from A are the noise floor "
            "[estimated from the dtypes and the growth of differences]",
            "C",
        ),
        "tolerance": Option("treat relative differences up to T as equal, even above the noise floor", "T"),
    },
    draws=True,
    code=lambda comparison, _: int(comparison.parted or not comparison.judged),
)
