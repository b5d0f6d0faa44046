"""Every text architecture of the installed transformers, as a small random model in float64.

A text architecture is a config with a vocabulary whose model reads `input_ids` and no images, sounds or boxes.
Sizes are set by the names of the config's fields; what these do not make small is in small_sizes.OWN.
"""

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from limit.small_sizes import EXPERTS, LAYERS, OWN, SIZES, VOCABULARY
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

TOKENS = 7
VOCABULARIES = ("vocab_size", "num_hash_buckets")  # CANINE hashes characters


@dataclass(frozen=True)
class Setting:
    """How a model is built: twice as many layers, twice as many experts, constants as initialized or not."""

    layers: int = 2
    perturbed: bool = True
    experts: int = 4
    attention: str = "eager"

    def __str__(self) -> str:
        kind = "perturbed" if self.perturbed else "as initialized"
        return f"{self.layers} layers, {self.experts} experts, {kind}, {self.attention}"


# Each pair of choices occurs, not each combination. 4 layers run with the attention that transformers chooses.
SETTINGS = (
    Setting(2, True, 4),
    Setting(2, False, 8),
    Setting(4, True, 8, "sdpa"),
    Setting(4, False, 4, "sdpa"),
)
NARROW_SETTINGS = (SETTINGS[0], SETTINGS[3])  # in 16 bits

# Read more than `input_ids`, or are parts of a speech model.
NOT_TEXT_ALONE = [
    "blt_local_decoder",
    "blt_local_encoder",
    "bros",
    "chameleon",
    "csm",
    "csm_depth_decoder_model",
    "gradium_phonon_tts",
    "kyutai_speech_to_text",
    "layoutlmv2",
    "layoutlmv3",
    "layoutxlm",
    "lxmert",
    "moshi_depth",
    "musicgen_decoder",
    "musicgen_melody_decoder",
    "pix2struct_text_model",
    "pocket_tts",
    "qwen3_omni_moe_talker_code_predictor",
    "rag",
    "seamless_m4t",
    "seamless_m4t_v2",
    "t5gemma2_decoder",
    "t5gemma2_text",
    "tvp",
    "udop",
    "vilt",
    "voxtral_realtime_text",
    "EvollaModel",
]


def candidates() -> list[str]:
    """Names of configs that may be of text; whether they are is known once the code of the model is imported."""
    return [name for name in sorted(set(CONFIG_MAPPING_NAMES)) if _has_text(name)]


def _has_text(name: str) -> bool:
    config = CONFIG_MAPPING[name]
    parts = " ".join(config.sub_configs)
    other = any(word in parts for word in ("vision", "audio", "video"))
    return name not in NOT_TEXT_ALONE and any(_has(config, word) for word in VOCABULARIES) and not other


def model_class(name: str) -> type[nn.Module] | None:
    """The class of a text architecture without its head; None for what is none."""
    if not _has_text(name):
        return None
    config = CONFIG_MAPPING[name]
    try:
        found = MODEL_MAPPING[config]
    except (KeyError, ValueError):
        found = _in_its_module(config)
    found = found[0] if isinstance(found, tuple) else found
    if found is None or getattr(found, "main_input_name", "") != "input_ids":
        return None
    modalities = getattr(found, "input_modalities", "text")
    if "text" not in modalities:
        return None
    needed = [
        p
        for p in inspect.signature(found.forward).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    return found if {p.name for p in needed} <= {"self", "input_ids"} else None


def _has(config: type, name: str) -> bool:
    if isinstance(held := inspect.getattr_static(config, name, None), property) and held.fset is None:
        return False
    return (
        name in dir(config)
        or name in getattr(config, "__dataclass_fields__", {})
        or name in getattr(config, "attribute_map", {})
    )


def _in_its_module(config: type) -> type[nn.Module] | None:
    """A model that the auto classes do not know: the shortest name ending in Model, or Decoder, of this config."""
    module = import_module(config.__module__.replace("configuration_", "modeling_"))
    found = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and getattr(kind, "config_class", None) is config
        and kind.__module__ == module.__name__
        and kind.__name__.endswith(("Model", "Decoder", "Encoder", "Transformer"))
        and "PreTrained" not in kind.__name__
    ]
    return min(found, key=lambda kind: len(kind.__name__), default=None)


def small_config(name: str, setting: Setting) -> Any:
    kind = CONFIG_MAPPING[name]
    sizes = SIZES | dict.fromkeys(LAYERS, setting.layers) | dict.fromkeys(EXPERTS, setting.experts)
    if _has(kind, "kv_lora_rank"):  # latent attention has as many keys as queries
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    sizes["mlp_layer_types"] = ["sparse"] * setting.layers
    own = OWN.get(name, {})
    sizes |= {key: value(setting.layers) if callable(value) else value for key, value in own.items()}
    given = {key: value for key, value in sizes.items() if _has(kind, key) and value is not None}
    for part, sub in kind.sub_configs.items():
        given.setdefault(part, {key: value for key, value in sizes.items() if _has(sub, key)})
    return kind(**given)


def has_experts(config: Any) -> bool:
    return any(getattr(config, name, None) for name in EXPERTS)


@torch.no_grad()
def build(name: str, setting: Setting) -> nn.Module:
    kind = model_class(name)
    assert kind is not None
    config = small_config(name, setting)
    torch.manual_seed(0)
    model: Any = kind._from_config(config)
    if setting.attention == "eager" or not model._supports_sdpa:
        model.set_attn_implementation("eager")
    if has_experts(config) and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    model.config.use_cache = False
    model = model.eval().double()
    prepare(model, setting.perturbed)
    return model


def prepare(model: nn.Module, perturbed: bool) -> None:
    """Larger weights, so that small c already decide; constants that are not 0 and 1, if `perturbed`."""
    generator = torch.Generator().manual_seed(1)

    def noise(like: Tensor) -> Tensor:
        return 0.3 * torch.randn(like.shape, dtype=like.dtype, generator=generator)

    for parameter in model.parameters():
        if (
            not bool(parameter.isfinite().all()) or float(parameter.abs().max()) > 1e6
        ):  # left as it was allocated
            parameter.copy_(noise(parameter))
        elif perturbed and (parameter.dim() == 1 or bool((parameter == parameter.flatten()[0]).all())):
            parameter.add_(noise(parameter))
        elif parameter.dim() > 1:
            parameter.mul_(3)
    for buffer in model.buffers():
        if not buffer.is_floating_point():
            continue
        if not bool(buffer.isfinite().all()) and not bool((buffer == -torch.inf).any()):
            buffer.zero_()
        if perturbed and float(buffer.abs().max()) < 1e3 if buffer.numel() else False:
            if bool((buffer == 0).all()):
                buffer.add_(noise(buffer))
            else:
                buffer.mul_(noise(buffer).exp())


def text(model: nn.Module) -> dict[str, Tensor]:
    """Two sequences of tokens; their first ones for a decoder."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (2, TOKENS), generator=generator)
    names = inspect.signature(model.forward).parameters
    return {"input_ids": ids} | (
        {"decoder_input_ids": ids[:, :5].clone()} if "decoder_input_ids" in names else {}
    )
