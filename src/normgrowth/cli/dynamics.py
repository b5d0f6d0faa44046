"""normgrowth dynamics."""

from normgrowth.cli.command import Command
from normgrowth.cli.options import Option

COMMAND = Command(
    verb="normgrowth.dynamics:dynamics",
    summary="explain why the norm grew: step size or alignment, learning rates, weight decay",
    description="Explain why the norm of a trace grew. Split the growth of ‖θ‖² into step size ‖δ‖² and alignment\n"
    "2⟨θ,δ⟩, and show whether the direction settles and which layers grow. With --schedule, estimate κ in\n"
    "‖δ‖ = κη‖θ‖ and predict the norm for steps that are parallel (aligned) or perpendicular (misaligned)\n"
    "to the weights. With --weight-decay, compute the equilibrium norm for random gradients.",
    examples="""  normgrowth dynamics traces/gpt
  normgrowth dynamics traces/gpt --schedule cosine:lr=6e-4,steps=60000,warmup=200 --weight-decay 0.1
  normgrowth dynamics traces/gpt --schedule 1e-3 --level layer --name layer.3 --json
  normgrowth dynamics published:t5-encoder

schedules: constant:lr=3e-4   linear:lr=1e-3,steps=10000,warmup=500
           cosine:lr=1e-3,steps=10000,end=1e-4
           inverse_sqrt:lr=5e-4,warmup=4000   inverse_sqrt:lr=0.01,hold=10000 (T5)""",
    positional=("trace",),
    draws=True,
    own={
        "trace": Option("output folder of a trace, or published:t5, t5-encoder, t5-decoder", "TRACE"),
        "schedule": Option("schedule of learning rates, see below [none; published:t5 includes one]", "SPEC"),
        "kappa": Option("κ of single steps, if training logged it", "K"),
        "weight_decay": Option("weight decay λ; 0 if there was none", "L"),
        "decay": Option(
            "kind of weight decay: decoupled (θ -= ηλθ), coupled (λθ in the gradient) or eq3 (θ -= λθ, the paper's "
            "eq. (3)) [decoupled for adamw, coupled for sgd]",
            choices=("decoupled", "coupled", "eq3"),
        ),
        "optimizer": Option("optimizer", choices=("adamw", "sgd")),
        "betas": Option("betas of AdamW", "B1,B2"),
        "momentum": Option("momentum of SGD", "M"),
        "gradient_norm": Option(
            "norm of the gradients, for the equilibrium of SGD; with --invariant, the norm of the gradients times the "
            "norm of the weights",
            "G",
        ),
        "invariant": Option("the weights are scale-invariant"),
    },
)
