"""normgrowth behavior."""

from normgrowth.cli.command import Command
from normgrowth.cli.options import LOADED, Option, natural, positive

COMMAND = Command(
    verb="normgrowth.behavior:behavior",
    summary="compare the predictions of a language model with those of its saturated limit",
    description="Compare the predictions of the trained (soft) network with those of the same network with hard\n"
    "attention, with weights multiplied by c, and in the exact limit c → ∞: accuracy, loss and agreement,\n"
    "with confidence intervals over sentences.",
    examples="""  normgrowth behavior runs/ptb/best --text valid.txt -o out
  normgrowth behavior runs/dyck2/best --language dyck2 --longest 20
  normgrowth behavior gpt2 --text sentences.txt --c 2,10,100
  normgrowth behavior bert-base-uncased --text sentences.txt     (some tokens are masked)

From Python: normgrowth.behavior(model, sentences).""",
    positional=("model",),
    hidden=("tokenizer", "run"),
    own={
        "model": Option(f"causal or masked language model: {LOADED}", "MODEL", nargs="+"),
        "objective": Option("predict the next token or masked tokens [by the architecture]"),
        "masked_share": Option("share of the tokens that a masked model predicts", "S"),
        "language": Option("use words of a formal language as text: dyck1, dyck2, anbn, anbncn, ...", "NAME"),
        "longest": Option("maximum length of a word of the language, in symbols", "N", positive),
        "c": Option("factors c by which the weights are scaled", "C,C"),
        "exact": Option("skip the exact limit"),
        "hard_attention": Option("skip the network with hard attention"),
        "random_init": Option(
            "number of networks with random weights per architecture, as a baseline", "N", natural
        ),
        "bootstrap": Option("bootstrap replicates for the intervals; 0 for none", "N", natural),
    },
    draws=True,
)
