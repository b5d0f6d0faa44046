"""A model's config.json, checked before a model of its size is built.

read_config    config.json -> a config of transformers, or an error that names the file, the key and the value
check_size     compares the size of the model, counted on the meta device, with the memory of this machine
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.errors import ConfigError, InputError, is_mistake
from normgrowth.serialization.json_types import read_json

if TYPE_CHECKING:
    import torch
    from torch import nn

MOST = 2**31  # bound on all integers: sizes and ids of real models are smaller
MOST_LAYERS = 10_000
MOST_MODULES = 200_000
DEEPEST = 50  # maximum nesting of objects
LAYERS = re.compile(r"layers?$|^depths?$|_blocks$|^num_hidden_groups$|^inner_group_num$")
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
    "num_key_value_heads",
    "head_dim",
)
HEAD_SIZES = ("head_dim", "d_kv", "d_head", "kv_channels", "qk_nope_head_dim", "attention_head_size")


def read_config(
    transformers: Any, where: str, path: Path | None, model_type: str | None, local: Mapping[str, Any]
) -> Any:
    """The config of a local file or folder, or of a hub id. model_type: for a config.json without model_type."""
    file = f"{where}/config.json" if path is None else str(config_file(path))
    said = (
        read_json(Path(file), dict[str, Any]) if path is not None else _from_hub(transformers, where, local)
    )
    own = said.get("model_type")
    if model_type is None and own is None:
        raise ConfigError(file, "model_type", None, _which(transformers, said, path))
    if model_type is not None or not isinstance(own, str):
        said["model_type"] = model_type or own
    kind = said["model_type"]
    known = transformers.CONFIG_MAPPING
    if not isinstance(kind, str):
        raise ConfigError(file, "model_type", kind, "expected the name of an architecture, such as 'bert'")
    if kind not in known:
        if "auto_map" in said and model_type is None:
            raise InputError(
                "it needs code from its repository, which is never run; load it in Python and pass the module"
            )
        raise ConfigError(file, "model_type", kind, _unknown(transformers, kind))
    _check_numbers(file, said, 0)
    for size in SIZES:  # before the config object is built, which divides by some of them
        for name in (size, known[kind].attribute_map.get(size, size)):
            _at_least_one(file, name, said.get(name))
    with config_errors(file):
        config = (
            transformers.AutoConfig.from_pretrained(where, trust_remote_code=False, **local)
            if model_type is None
            else known[kind].from_dict(said)
        )
    for part in {id(one): one for one in (config, config.get_text_config())}.values():
        _check_sizes(file, part, said)
    return config


def config_file(path: Path) -> Path:
    return path / "config.json" if path.is_dir() else path


def check_size(auto: Any, config: Any, dtype: "torch.dtype", file: object) -> None:
    """Raise an error if the model cannot be built or its weights do not fit into the memory of this machine.

    auto: the class of transformers that builds the model, such as AutoModel.
    """
    import torch

    with config_errors(file, config), few_modules(file), torch.device("meta"):
        model = auto.from_config(config, trust_remote_code=False)
    check_fits(model, dtype, file, config.to_dict())


def check_fits(model: "nn.Module", dtype: "torch.dtype", file: object, said: Mapping[str, Any]) -> None:
    """Raise ConfigError if the weights do not fit into memory. model: on the meta device."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    total = sum(tensor.numel() for _, tensor in tensors) * dtype.itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if total <= memory:
        return
    name, largest = max(tensors, key=lambda one: one[1].numel())
    key, value = next(
        ((key, value) for key, value in said.items() if value == max(largest.shape)),
        ("its largest tensor", name),
    )
    need = f"{total / 1e9:,.0f} GB of weights in {str(dtype).removeprefix('torch.')}"
    raise ConfigError(
        file,
        key,
        value,
        f"{need}, this machine has {memory / 1e9:,.0f} GB ({name} is {'×'.join(map(str, largest.shape))})",
    )


@contextmanager
def few_modules(file: object) -> Iterator[None]:
    """Raise an error instead of looping endlessly if a config requires millions of modules."""
    from torch.nn.modules.module import register_module_module_registration_hook

    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > MOST_MODULES:
            raise ConfigError(
                file, "the number of modules", f"more than {MOST_MODULES:,}", "no real model has this many"
            )

    handle = register_module_module_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def config_errors(file: object, config: Any = None) -> Iterator[None]:
    """Turn errors of transformers and torch about a config into one line that names the file."""
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise InputError(
            f"{file}: does not fit into memory; use a smaller config or dtype bfloat16"
        ) from None
    except Exception as error:  # libraries raise any class, and each error is about this config
        if is_mistake(error):
            raise
        # A validation error has the field in its first line and the value in the second, so lines are joined.
        said = " ".join(str(error).split())[:220] or type(error).__name__
        if isinstance(error, KeyError):  # its message is only the key
            said = f"has the value {said}, which transformers does not know"
        raise InputError(f"{file}: {said}{_suspects(config)}") from error


def _suspects(config: Any) -> str:
    """Values that may be the reason why the model cannot be built."""
    found = config.to_dict() if config is not None else {}
    vocabulary = found.get("vocab_size")
    odd = [
        f"{key} = {value}"
        for key, value in found.items()
        if isinstance(value, int)
        and not isinstance(value, bool)
        and (value < 0 or (key == "pad_token_id" and isinstance(vocabulary, int) and value >= vocabulary))
    ]
    return f" (check {', '.join(odd[:3])})" if odd else ""


def _from_hub(transformers: Any, where: str, local: Mapping[str, Any]) -> dict[str, Any]:
    return dict(transformers.PretrainedConfig.get_config_dict(where, **local)[0])


def _which(transformers: Any, said: Mapping[str, Any], path: Path | None) -> str:
    names = said.get("architectures")
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    guesses = [
        re.sub(r"(Model|For[A-Z]\w*|LMHead\w*|Encoder\w*)$", "", first),
        path.resolve().name if path else "",
    ]
    close = [match for guess in guesses for match in _close(transformers, guess)]
    such = ", ".join(dict.fromkeys(close)) or "bert, gpt2, llama"
    return f"name the architecture with --model-type NAME, or model_type= in Python (for example {such})"


def _unknown(transformers: Any, kind: str) -> str:
    close = ", ".join(_close(transformers, kind))
    return (
        f"transformers {transformers.__version__} does not know this architecture"
        f"{f' (similar: {close})' if close else ''}; load it in Python and pass the module"
    )


def _close(transformers: Any, name: str) -> list[str]:
    plain = {re.sub(r"[-_]", "", kind): kind for kind in transformers.CONFIG_MAPPING}
    return [plain[match] for match in get_close_matches(re.sub(r"[-_]", "", name.lower()), plain, 3, 0.75)]


def _check_numbers(file: object, said: Any, depth: int, key: str = "") -> None:
    """Raise an error for huge numbers and deep nesting: transformers builds lists of the lengths in the config."""
    if depth > DEEPEST:
        raise InputError(f"{file}: nested more than {DEEPEST} levels deep")
    if isinstance(said, Mapping):
        for name, value in said.items():
            _check_numbers(file, value, depth + 1, name)
    elif isinstance(said, list):
        for value in said:
            _check_numbers(file, value, depth + 1, key)
    elif isinstance(said, int) and abs(said) >= MOST:
        raise ConfigError(file, key, said, "must be below 2^31 in absolute value")
    elif isinstance(said, int) and LAYERS.search(key) and said > MOST_LAYERS:
        raise ConfigError(file, key, said, f"more than {MOST_LAYERS:,} layers")


def _at_least_one(file: object, key: str, value: Any) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1:
        raise ConfigError(file, key, value, "must be at least 1")


def _check_sizes(file: object, config: Any, said: Mapping[str, Any]) -> None:
    names = {size: type(config).attribute_map.get(size, size) for size in SIZES}
    sizes = {size: getattr(config, name, None) for size, name in names.items()}
    sizes = {size: value for size, value in sizes.items() if isinstance(value, int)}
    for size, value in sizes.items():
        _at_least_one(file, names[size], value)
    own = any(said.get(name) is not None for name in HEAD_SIZES)
    own = own or any(isinstance(getattr(type(config), name, None), int) for name in HEAD_SIZES)
    width, heads = sizes.get("hidden_size"), sizes.get("num_attention_heads")
    if not own and width and heads and width % heads:
        raise ConfigError(
            file,
            names["num_attention_heads"],
            heads,
            f"{names['hidden_size']}, {width}, is not divisible by it",
        )
