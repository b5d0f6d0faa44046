"""Options of commands, generated from the signature of the verb that a command calls.

A parameter `from_step: float | None = None` becomes `--from-step`; a flag that is True by default becomes `--no-...`.
OPTIONS adds, once for all commands, the facts that a signature lacks: help text, metavar, bounds.
"""

import argparse
import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LEVELS = ("model", "part", "layer", "layer_matrices", "role", "tensor")
INCLUDE = ("blocks", "encoder", "decoder", "all", "encoder,decoder")
LOADED = "hub id, folder with config.json, or config.json alone (random weights)"
MODEL = f"{LOADED}, or minilm"


def integer(text: str, least: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid integer {text!r}") from None
    if least is not None and number < least:
        raise argparse.ArgumentTypeError(f"must be >= {least}, got {text}")
    return number


def positive(text: str) -> int:
    return integer(text, 1)


def natural(text: str) -> int:
    return integer(text, 0)


def real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid number {text!r}") from None


def size(text: str) -> int:
    """The number of bytes of a size such as 512M or 2.5G."""
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1:].upper())
    try:
        found = float(text[:-1] if unit else text) * 2 ** (unit or 0)
    except ValueError:
        found = 0.0
    if not 1 <= found < 2**60:
        raise argparse.ArgumentTypeError(f"invalid size {text!r} (examples: 512M, 2G)")
    return int(found)


def pair(text: str) -> tuple[float, float]:
    """Two numbers from text such as 0.9,0.999."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid pair of numbers {text!r} (example: 0.9,0.999)") from None
    return first, second


def several(parse: Callable[[str], Any], example: str) -> Callable[[str], tuple[Any, ...]]:
    """A parser of comma-separated lists."""

    def parsed(text: str) -> tuple[Any, ...]:
        try:
            return tuple(parse(part.strip()) for part in text.split(",") if part.strip())
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error} in {text!r} (example: {example})") from None

    return parsed


@dataclass(frozen=True)
class Option:
    """Facts about a parameter that the signature does not contain."""

    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    choices: tuple[str, ...] | None = None
    short: str | None = None  # -o
    flag: str | None = None  # replaces the name of the parameter
    nargs: str | None = None


# Options that several commands share.
OPTIONS: dict[str, Option] = {
    "source": Option(
        "one or several checkpoint files, folders or quoted globs, local or at https://, s3:// or gs://; "
        "or hf://org/repo@revision-pattern",
        metavar="SOURCE",
        nargs="+",
    ),
    "out": Option("output folder; run the same command again to resume", "DIR", short="-o"),
    "overwrite": Option("replace another result in the output folder"),
    "include": Option(
        "parameters to count: blocks, encoder, decoder, encoder,decoder (both stacks) or all",
        "WHICH",
        choices=INCLUDE,
    ),
    "select": Option("count only parameters whose name matches", "REGEX"),
    "exclude": Option("do not count parameters whose name matches", "REGEX"),
    "scalars": Option("also measure the shares of single weights that grew and that changed sign"),
    "lags": Option("also compare each checkpoint with those N checkpoints earlier", "N,N"),
    "first": Option("do not compare with the first checkpoint"),
    "tokens_per_step": Option("number of training tokens per step; adds a column of tokens", "N"),
    "run": Option("name of the run in the records", "NAME"),
    "lint": Option("skip integrity checks"),
    "endpoint": Option("address of the hub, if it is not Hugging Face's", "URL"),
    "workers": Option("number of threads or processes [all cores]", "N", positive),
    "memory": Option("memory limit for checkpoints read over the network", "SIZE", size),
    "level": Option("level of aggregation", choices=LEVELS),
    "name": Option("name of the part, layer, role or tensor", "NAME"),
    "quantity": Option("quantity of the records", "NAME"),
    "from_step": Option("first step to use", "STEP"),
    "to_step": Option("last step to use", "STEP"),
    "seed": Option("seed of random numbers", "N", natural),
    "bootstrap": Option("bootstrap replicates for the intervals; 0 for none", "N"),
    "confidence": Option("confidence of the intervals", "C"),
    "texts": Option("text file with a sentence per line [Python's documentation]", "FILE", flag="--text"),
    "sentences": Option("number of sentences", "N", positive),
    "batch_tokens": Option("tokens per forward pass", "N", positive),
    "fixed": Option("parameters to keep unscaled: names or patterns such as '*.A_log'", "NAME", nargs="+"),
    "dtype": Option("dtype: float64, float32, bfloat16 or float16", "DTYPE"),
    "attention": Option("attention implementation", choices=("eager", "sdpa"), flag="--attn"),
    "model_type": Option("architecture of a config.json without model_type (bert, gpt2, llama, ...)", "NAME"),
    "orders": Option("number of orders of the expansion in c [as many as ties need]", "N", positive),
    "exact": Option("skip the exact limit c → ∞"),
    "data": Option("folder with the corpora penn and wikitext-2 [download from the hub]", "DIR"),
    "strict": Option("exit with 1 if there is a fault"),
}

PARSERS: dict[str, Callable[[str], Any]] = {
    "int": integer,
    "float": real,
    "str": str,
    "str | Path": str,
    "Path | str": str,
    "Path": str,
    "tuple[float, float]": pair,
    "Sequence[int]": several(integer, "1,10,100"),
    "Sequence[float]": several(real, "1,10,1000"),
    "Sequence[str]": several(str, "sqrt,power"),
    "Sequence[str] | str": several(str, "sqrt,power"),
}


def add_options(
    parser: argparse.ArgumentParser,
    verb: Callable[..., Any],
    *,
    positional: tuple[str, ...],
    without: tuple[str, ...] = (),
    own: Mapping[str, Option] | None = None,
) -> list[str]:
    """Add an option for each parameter of the verb; return the names of the parameters."""
    known = {**OPTIONS, **(own or {})}
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(verb).parameters.items()
        if name not in without and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    for name in (*positional, *(name for name in parameters if name not in positional)):
        parameter = parameters[name]
        if name not in known:
            raise AssertionError(
                f"{verb.__name__}({name}=) has no help text: add it to the command's options"
            )
        _add(parser, name, parameter, known[name], positional=name in positional)
    return list(parameters)


def _add(
    parser: argparse.ArgumentParser,
    name: str,
    parameter: inspect.Parameter,
    option: Option,
    *,
    positional: bool,
) -> None:
    annotation = _plain(parameter.annotation)
    default = None if parameter.default is parameter.empty else parameter.default
    if annotation == "bool" and not positional:
        flag = option.flag or f"--{'no-' if default else ''}{name.replace('_', '-')}"
        action = "store_false" if default else "store_true"
        parser.add_argument(flag, dest=name, action=action, help=option.help)
        return
    text = option.help
    if default not in (None, "", ()) and not text.endswith("]"):
        text += f" [{_shown(default)}]"
    how: dict[str, Any] = {"help": text.replace("%", "%%")}
    choices = option.choices or _literal(annotation)
    if choices:
        how["choices"] = choices
        if option.metavar:
            how["metavar"] = option.metavar
    else:
        how["type"] = option.parse or PARSERS.get(annotation, str)
        how["metavar"] = option.metavar
    if option.nargs:
        how["nargs"] = option.nargs
        if option.nargs in ("+", "*"):
            how["type"] = option.parse or str
    if positional:
        parser.add_argument(name, **how)
        return
    flags = [option.short] if option.short else []
    flags.append(option.flag or f"--{name.replace('_', '-')}")
    required = parameter.default is parameter.empty
    parser.add_argument(*flags, dest=name, default=default, required=required, **how)


def _plain(annotation: Any) -> str:
    """The annotation as text, without `None` and module names."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = text.strip("\"'").replace("collections.abc.", "").replace("pathlib.", "").replace("typing.", "")
    return " | ".join(part for part in text.split(" | ") if part != "None")


def _literal(annotation: str) -> tuple[str, ...] | None:
    if not annotation.startswith("Literal["):
        return None
    found = ast.literal_eval(f"({annotation.removeprefix('Literal[').removesuffix(']')},)")
    return tuple(str(value) for value in found)


def _shown(default: Any) -> str:
    if isinstance(default, list | tuple):
        return ",".join(map(str, default))
    if isinstance(default, float) and default.is_integer() and abs(default) < 1e6:
        return str(int(default))
    if isinstance(default, int) and default >= 2**20 and default % 2**20 == 0:
        return f"{default // 2**30}G" if default % 2**30 == 0 else f"{default // 2**20}M"
    return str(default)
