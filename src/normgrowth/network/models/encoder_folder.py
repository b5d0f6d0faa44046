"""Our own encoders in a folder, and as the rest of this package reads models.

    config.json          the EncoderConfig, under the model type "normgrowth_encoder"
    model.safetensors    the weights of a LanguageModel
    vocabulary.txt       a word a line, in the order of their ids

`load_model` knows these folders, so `saturation`, `scaling`, `degrees` and `heads` take them like any other. What they
get is a `StoredEncoder`: the encoder without its head, called as models of transformers are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normgrowth.errors import ConfigError, InputError
from normgrowth.network.models.config import MOST_LAYERS, check_fits
from normgrowth.network.models.encoders import Encoder, EncoderConfig, LanguageModel
from normgrowth.workspace import replacing

MODEL_TYPE = "normgrowth_encoder"
CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.txt"
UNKNOWN, END = "<unk>", "<eos>"


class EncoderOutput(NamedTuple):
    """A tuple, which the limit looks into, with the names that outputs of transformers have."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None


class StoredEncoder(Encoder):
    """An encoder that takes `input_ids` and `attention_mask`, and gives `hidden_states`."""

    main_input_name = "input_ids"

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        output_hidden_states: bool = True,
        return_dict: bool = True,  # noqa: ARG002
    ) -> EncoderOutput:
        # Padding on the right is hidden by a causal mask anyway, and attention is faster without another.
        if attention_mask is not None and (bool(attention_mask.all()) or self._hides(attention_mask)):
            attention_mask = None
        states = super().forward(input_ids, attention_mask, return_states=True)
        return EncoderOutput(states[-1], tuple(states) if output_hidden_states else None)

    def _hides(self, mask: Tensor) -> bool:
        rising = bool((mask.int().diff(dim=1) > 0).any())
        return self.config.causal and not self.config.leaking and not rising and bool(mask[:, 0].all())


class LogitsOutput(NamedTuple):
    """A tuple, which the limit looks into, with the name that outputs of transformers have."""

    logits: Tensor


class StoredLanguageModel(LanguageModel):
    """A language model that takes `input_ids`, and gives `logits`."""

    main_input_name = "input_ids"

    def __init__(self, config: EncoderConfig, *, tied: bool = False, bias: bool | None = None) -> None:
        super().__init__(config, tied=tied, bias=bias)
        self.tied = tied

    def reinitialized(self) -> "StoredLanguageModel":
        """The same architecture with random weights."""
        return StoredLanguageModel(self.config, tied=self.tied, bias=self.head.bias is not None)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> LogitsOutput:
        if attention_mask is not None and bool(attention_mask.all()):
            attention_mask = None
        return LogitsOutput(super().forward(input_ids, attention_mask))  # pyright: ignore[reportArgumentType]


class Words:
    """A tokenizer that knows words: ids of a line's words between two end marks, `<unk>` where there is none."""

    pad_token_id = 0  # any: padding is never seen

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        if len(self.ids) < len(self.words):
            raise InputError(f"{VOCABULARY}: a word is in it twice")
        self.unk_token_id, self.eos_token_id = self.ids.get(UNKNOWN), self.ids.get(END)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        try:
            return [self.ids[word] if word in self.ids else self.ids[UNKNOWN] for word in words]
        except KeyError:
            raise InputError(
                f"{next(w for w in words if w not in self.ids)!r} is no word of this model"
            ) from None

    def __call__(
        self, line: str, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[int]]:
        """What the model read in training: an end mark, then the words. The last end mark is only predicted."""
        ids = [self.ids[END], *self.encode(line.split())]
        return {"input_ids": ids[:max_length] if truncation else ids}


def write(folder: Path, model: LanguageModel, words: Sequence[str]) -> None:
    """A folder that `read` understands; each file is whole or not there."""
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as path:
        save_model(model, str(path), metadata={"format": "pt"})
    with replacing(folder / VOCABULARY) as path:
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    with replacing(folder / CONFIG) as path:
        path.write_text(json.dumps({"model_type": MODEL_TYPE, **asdict(model.config)}, indent=1) + "\n")


def load_weights(folder: Path, model: LanguageModel) -> None:
    """The weights of a folder into a model of the same shape, its head included."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, folder / WEIGHTS)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(f"{folder / WEIGHTS}: not readable: {str(error).splitlines()[0]}") from error


def is_stored(path: Path) -> bool:
    """Whether a folder, or a config.json, is one of ours."""
    file = path / CONFIG if path.is_dir() else path
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, Mapping) and said.get("model_type") == MODEL_TYPE


def read_config(path: Path) -> EncoderConfig:
    file = path / CONFIG if path.is_dir() else path
    said: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    kinds = {field.name: field.type for field in fields(EncoderConfig)}
    for name, value in said.items():
        if name == "model_type":
            continue
        if name not in kinds:
            raise InputError(f"{file}: {name} is nothing that an encoder has")
        wanted = {int: int, bool: bool, float: (int, float)}.get(kinds[name], str)  # pyright: ignore
        if not isinstance(value, wanted) or (kinds[name] is int and isinstance(value, bool)):
            raise InputError(f"{file}: {name} cannot be {value!r}")
    for name in ("vocabulary", "max_length"):
        if name not in said:
            raise InputError(f"{file}: {name} is missing")
    return EncoderConfig(**{name: value for name, value in said.items() if name != "model_type"})


def read(
    path: Path, dtype: torch.dtype = torch.float32, seed: int = 0, *, head: bool = False
) -> tuple[StoredEncoder | StoredLanguageModel, Words | None, bool]:
    """The encoder, its vocabulary if there is one, and whether its weights are random (a config alone).

    head: the language model, with its head.
    """
    config = read_config(path)
    file = path / CONFIG if path.is_dir() else path
    if config.layers > MOST_LAYERS:
        raise ConfigError(file, "layers", config.layers, f"more than {MOST_LAYERS:,} layers")
    with torch.device("meta"):
        empty = StoredEncoder(config)
    check_fits(empty, dtype, file, asdict(config))
    folder = path if path.is_dir() else None
    words = None
    if folder and (folder / VOCABULARY).is_file():
        words = Words((folder / VOCABULARY).read_text(encoding="utf-8").split("\n")[:-1])
        if len(words) != config.vocabulary:
            raise InputError(
                f"{folder / VOCABULARY}: {len(words)} words, but config.json says {config.vocabulary}"
            )
    if folder is None or not (folder / WEIGHTS).is_file():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            build = StoredLanguageModel if head else StoredEncoder
            return build(config).to(dtype), words, True
    weights = {name: tensor.to(dtype) for name, tensor in _tensors(folder / WEIGHTS).items()}
    if not head:
        weights = {
            name.removeprefix("encoder."): tensor
            for name, tensor in weights.items()
            if name.startswith("encoder.")
        }
    if config.layers > len(weights):  # asked before anything of that size is built
        raise InputError(f"{folder / WEIGHTS}: {len(weights)} tensors cannot be {config.layers} layers")
    model = _empty_language_model(config, weights) if head else empty
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise InputError(f"{folder / WEIGHTS}: not of its config.json: {lines[-1].strip()}") from error
    if isinstance(model, StoredLanguageModel) and model.tied:  # loading made two parameters of one tensor
        model.head.weight = model.encoder.token_embedding.weight
    return model.requires_grad_(), words, False


def _empty_language_model(config: EncoderConfig, weights: dict[str, Tensor]) -> StoredLanguageModel:
    """On the meta device; of tied weights, which are stored once, both names are put into `weights`."""
    own, embedding = "head.weight", "encoder.token_embedding.weight"
    tied = (own in weights) != (embedding in weights)
    if tied:
        weights |= dict.fromkeys((own, embedding), weights.get(own, weights.get(embedding)))  # pyright: ignore
    with torch.device("meta"):
        return StoredLanguageModel(config, tied=tied, bias="head.bias" in weights)


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: not readable: {str(error).splitlines()[0]}") from error
