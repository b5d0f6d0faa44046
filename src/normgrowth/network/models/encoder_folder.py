"""normgrowth's own encoders: stored in a folder, and wrapped for the rest of this package.

    config.json          the EncoderConfig, under the model type "normgrowth_encoder"
    model.safetensors    the weights of a LanguageModel
    vocabulary.txt       one word per line, in the order of their ids

`load_model` reads these folders, so `saturation`, `scaling`, `degrees` and `heads` accept them like any other model. It
returns a `StoredEncoder`: the encoder without its head, with the interface of transformers models.
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
from normgrowth.serialization.json_types import converted, read_json
from normgrowth.serialization.regular_files import read_regular
from normgrowth.workspace import replacing

MODEL_TYPE = "normgrowth_encoder"
CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.txt"
UNKNOWN, END = "<unk>", "<eos>"


class EncoderOutput(NamedTuple):
    """An output with the field names of transformers; a tuple, so that the limit can process its tensors."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None


class StoredEncoder(Encoder):
    """An encoder that takes `input_ids` and `attention_mask`, and returns `hidden_states`."""

    main_input_name = "input_ids"

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        output_hidden_states: bool = True,
        return_dict: bool = True,  # noqa: ARG002
    ) -> EncoderOutput:
        # The causal mask already hides padding on the right, and attention is faster without a second mask.
        if attention_mask is not None and (bool(attention_mask.all()) or self._hides(attention_mask)):
            attention_mask = None
        states = super().forward(input_ids, attention_mask, return_states=True)
        return EncoderOutput(states[-1], tuple(states) if output_hidden_states else None)

    def _hides(self, mask: Tensor) -> bool:
        rising = bool((mask.int().diff(dim=1) > 0).any())
        return self.config.causal and not self.config.leaking and not rising and bool(mask[:, 0].all())


class LogitsOutput(NamedTuple):
    """An output with the field name of transformers; a tuple, so that the limit can process its tensor."""

    logits: Tensor


class StoredLanguageModel(LanguageModel):
    """A language model that takes `input_ids` and returns `logits`."""

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
    """A word-level tokenizer; unknown words become `<unk>`."""

    pad_token_id = 0  # arbitrary: padding is always masked

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        if len(self.ids) < len(self.words):
            raise InputError(f"{VOCABULARY}: contains a word twice")
        self.unk_token_id, self.eos_token_id = self.ids.get(UNKNOWN), self.ids.get(END)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Sequence[str]) -> list[int]:
        try:
            return [self.ids[word] if word in self.ids else self.ids[UNKNOWN] for word in words]
        except KeyError:
            raise InputError(
                f"{next(w for w in words if w not in self.ids)!r} is not in the vocabulary of this model"
            ) from None

    def __call__(
        self, line: str, truncation: bool = False, max_length: int | None = None
    ) -> dict[str, list[int]]:
        """The model's input in training: an end mark, then the words. The last end mark is only a target."""
        ids = [self.ids[END], *self.encode(line.split())]
        return {"input_ids": ids[:max_length] if truncation else ids}


def write(folder: Path, model: LanguageModel, words: Sequence[str]) -> None:
    """Write a folder for `read`. Each file is written atomically."""
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS) as path:
        save_model(model, str(path), metadata={"format": "pt"})
    with replacing(folder / VOCABULARY) as path:
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    with replacing(folder / CONFIG) as path:
        path.write_text(json.dumps({"model_type": MODEL_TYPE, **asdict(model.config)}, indent=1) + "\n")


def load_weights(folder: Path, model: LanguageModel) -> None:
    """Load the weights of a folder into a model of the same shape, including its head."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, folder / WEIGHTS)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise InputError(f"{folder / WEIGHTS}: not readable: {str(error).splitlines()[0]}") from error


def is_stored(path: Path) -> bool:
    """Whether a folder or config.json contains an encoder of normgrowth."""
    file = path / CONFIG if path.is_dir() else path
    try:
        said = json.loads(read_regular(file))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, Mapping) and said.get("model_type") == MODEL_TYPE


def read_encoder_config(path: Path) -> EncoderConfig:
    file = path / CONFIG if path.is_dir() else path
    said = read_json(file, dict[str, Any])
    del said["model_type"]
    if unknown := said.keys() - {one.name for one in fields(EncoderConfig)}:
        raise InputError(f"{file}: unknown key {min(unknown)}")
    return converted(said, EncoderConfig, file)


def read(
    path: Path, dtype: torch.dtype = torch.float32, seed: int = 0, *, head: bool = False
) -> tuple[StoredEncoder | StoredLanguageModel, Words | None, bool]:
    """The encoder, its vocabulary or None, and whether its weights are random (if there is only a config).

    head: return the language model with its head instead of the encoder.
    """
    config = read_encoder_config(path)
    file = path / CONFIG if path.is_dir() else path
    if config.layers > MOST_LAYERS:
        raise ConfigError(file, "layers", config.layers, f"more than {MOST_LAYERS:,} layers")
    with torch.device("meta"):
        empty = StoredEncoder(config)
    check_fits(empty, dtype, file, asdict(config))
    folder = path if path.is_dir() else None
    words = None
    if folder and (folder / VOCABULARY).is_file():
        words = Words(read_regular(folder / VOCABULARY).decode("utf-8").split("\n")[:-1])
        if len(words) != config.vocabulary:
            raise InputError(
                f"{folder / VOCABULARY}: has {len(words)} words, but vocabulary in config.json is {config.vocabulary}"
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
    if config.layers > len(weights):  # checked before a model of that size is built
        raise InputError(f"{folder / WEIGHTS}: {len(weights)} tensors are too few for {config.layers} layers")
    model = _empty_language_model(config, weights) if head else empty
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise InputError(
            f"{folder / WEIGHTS}: does not match its config.json: {lines[-1].strip()}"
        ) from error
    if isinstance(model, StoredLanguageModel) and model.tied:  # loading untied the parameters
        model.head.weight = model.encoder.token_embedding.weight
    return model.requires_grad_(), words, False


def _empty_language_model(config: EncoderConfig, weights: dict[str, Tensor]) -> StoredLanguageModel:
    """The model on the meta device. Tied weights are stored once; `weights` gets them under both names."""
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
