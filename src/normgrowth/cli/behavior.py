"""normgrowth behavior."""

from normgrowth.cli.command import Command
from normgrowth.cli.options import MODEL, Option, natural, positive

COMMAND = Command(
    verb="normgrowth.network.behavior.behavior:behavior",
    summary="measure what a language model predicts, soft and saturated",
    description="Measure accuracy, loss and agreement with the network as it is: for hard attention, for c times the\n"
    "weights, and for the exact limit of growing weights; with intervals over sentences.",
    examples="""  normgrowth behavior runs/ptb/best --text valid.txt -o out
  normgrowth behavior runs/dyck2/best --language dyck2 --longest 20
  normgrowth behavior gpt2 --text sentences.txt --c 2,10,100
  normgrowth behavior bert-base-uncased --text sentences.txt     (some tokens are masked)

From Python: normgrowth.behavior(model, sentences).""",
    positional=("model",),
    hidden=("tokenizer", "run"),
    own={
        "model": Option(f"causal or masked language model: {MODEL}", "MODEL", nargs="+"),
        "objective": Option("what is predicted (default: by the architecture)"),
        "masked_share": Option("share of the tokens that a masked model predicts", "S"),
        "language": Option("formal language whose words are read: dyck1, dyck2, anbn, anbncn, ...", "NAME"),
        "longest": Option("symbols of a word of the language at most", "N", positive),
        "c": Option("factors of the weights", "C,C"),
        "exact": Option("skip the exact limit"),
        "hard_attention": Option("skip the network with hard attention"),
        "random_init": Option(
            "networks of each architecture with random weights, as a baseline", "N", natural
        ),
        "bootstrap": Option("bootstrap replicates for the intervals; 0 for none", "N", natural),
    },
    draws=True,
)
