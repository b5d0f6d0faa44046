"""Inputs of the net: checkpoints, networks and text that are the same on every machine and with every version.

All values come from SplitMix64, written out here, and are multiples of a power of two. Float64 sums over the
checkpoints are therefore exact in any order of addition, so that the measured moments agree to the last bit on any CPU.
This module does not import normgrowth.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.numpy import save_file
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]
UNIT = 64  # weights of checkpoints are multiples of 1 / UNIT


def integers(key: str, shape: Sequence[int], low: int, high: int) -> np.ndarray:
    """Whole numbers from `low` up to, not including, `high`: the SplitMix64 stream that `key` names."""
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        z = np.uint64(zlib.crc32(key.encode())) << np.uint64(32)
        z = z + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) >> np.uint64(33)
    return low + (z % np.uint64(high - low)).astype(np.int64).reshape(shape)


# --- checkpoints -----------------------------------------------------------------------------------

WIDTH, WORDS = 12, 14
EVERY, COUNT = 25, 16  # steps between checkpoints, and how many there are


def first_state() -> Arrays:
    """A GPT-2 of two layers, its norms in float16; every value has at most eleven bits."""
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (WORDS, WIDTH)}
    for i in range(2):
        block = f"transformer.h.{i}"
        shapes |= {
            f"{block}.ln_1.weight": (WIDTH,),
            f"{block}.attn.c_attn.weight": (WIDTH, 3 * WIDTH),
            f"{block}.attn.c_attn.bias": (3 * WIDTH,),
            f"{block}.attn.c_proj.weight": (WIDTH, WIDTH),
            f"{block}.ln_2.weight": (WIDTH,),
            f"{block}.mlp.c_fc.weight": (WIDTH, 4 * WIDTH),
            f"{block}.mlp.c_proj.weight": (4 * WIDTH, WIDTH),
        }
    shapes["transformer.ln_f.weight"] = (WIDTH,)
    shapes["lm_head.weight"] = (WORDS, WIDTH)
    return {
        name: (integers(f"first {name}", shape, -90, 91) / UNIT).astype("f2" if "ln_" in name else "f4")
        for name, shape in shapes.items()
    }


def next_state(state: Arrays, number: int, key: str = "walk") -> Arrays:
    """One interval later: a random step that shrinks as training goes on, with a part along the weights."""
    moved = {}
    for name, values in state.items():
        size = 2 + 24 // (2 + number) + (3 if ".h.1." in name else 0)
        step = integers(f"{key} {number} {name}", values.shape, -size, size + 1)
        along = np.sign(values).astype(np.int64) * (number % 3 == 1)
        moved[name] = (values + ((step + along) / UNIT).astype(values.dtype)).astype(values.dtype)
    return moved


def walk(count: int = COUNT, key: str = "walk") -> dict[int, Arrays]:
    """States by step."""
    states = [first_state()]
    for number in range(count - 1):
        states.append(next_state(states[-1], number, key))
    return {EVERY * number: state for number, state in enumerate(states)}


def write(folder: Path, series: Mapping[int, Arrays]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for step, state in series.items():
        save_file({name: np.ascontiguousarray(a) for name, a in state.items()}, checkpoint(folder, step))
    return folder


def checkpoint(folder: Path, step: int) -> Path:
    return folder / f"step_{step}.safetensors"


QKV, FC = "transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_fc.weight"
OUT, PROJ = "transformer.h.1.attn.c_proj.weight", "transformer.h.0.mlp.c_proj.weight"
GAIN = "transformer.h.1.ln_1.weight"


def faulty_series() -> dict[str, dict[int, Arrays]]:
    """Series with planted faults, by a name for them: what is wrong with one tensor, with whole checkpoints."""
    tensors = walk()
    tensors[100][QKV] = tensors[75][QKV]  # did not change while its layer did
    tensors[150][FC] = np.where(tensors[150][FC] > 1, np.float32(np.nan), tensors[150][FC])
    del tensors[200][OUT]
    tensors[225][PROJ] = np.ascontiguousarray(tensors[225][PROJ].T)
    tensors[250][GAIN] = tensors[250][GAIN].astype("f4")
    for step in range(300, EVERY * COUNT, EVERY):
        tensors[step]["transformer.h.0.extra"] = integers("extra", (5,), 1, 9).astype("f4")
    copies, swapped, other = walk(), walk(), walk()
    copies[125] = copies[100]
    copies[200] = copies[375]
    swapped[150], swapped[250] = swapped[250], swapped[150]
    foreign = {name: (integers(f"foreign {name}", a.shape, -90, 91) / UNIT).astype(a.dtype)
               for name, a in other[0].items()}  # fmt: skip
    other[225] = foreign
    return {"honest": walk(), "tensors": tensors, "copies": copies, "swapped": swapped, "other run": other}


# --- networks --------------------------------------------------------------------------------------

TOKENS: dict[str, Any] = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
SIZES: dict[str, Any] = dict(
    num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=40
)
GROUPED: dict[str, Any] = dict(**SIZES, **TOKENS, num_key_value_heads=1, max_position_embeddings=16)
SCALE = 2.0**-11


def fill(model: nn.Module, seed: int) -> nn.Module:
    """Give every parameter values that depend on its name and the seed alone: gains around 1, the rest around 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = integers(f"{seed} {name}", tuple(parameter.shape), -512, 512) * SCALE
            gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(torch.from_numpy(drawn + gain))
    return model


def _eager(config: Any) -> Any:
    """Plain matrix products, which torch has in float64."""
    config._attn_implementation = config._experts_implementation = "eager"
    return config


class KnownBert(hf.BertModel):
    """A BERT whose random initialization is ours: its weights follow from torch's seed, not from torch's numbers."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, add_pooling_layer=False)
        fill(self, torch.initial_seed())


def known_bert(seed: int) -> nn.Module:
    config = _eager(hf.BertConfig(**SIZES, **TOKENS, max_position_embeddings=16))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return KnownBert(config).double().eval()


def bert_series() -> dict[int, Arrays]:
    """Two checkpoints of `known_bert`."""
    states = {100 * i: known_bert(20 + i).state_dict() for i in range(2)}
    return {step: {name: t.numpy() for name, t in state.items()} for step, state in states.items()}


def gpt2(kind: str = "GPT2Model", width: int = 16) -> nn.Module:
    sizes: dict[str, Any] = dict(
        n_layer=2, n_embd=width, n_head=2, n_inner=24, vocab_size=40, n_positions=16, **TOKENS
    )
    dropouts: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return fill(getattr(hf, kind)(_eager(hf.GPT2Config(**sizes, **dropouts))), 5).double().eval()


def gpt2_with_a_mean_head() -> nn.Module:
    """Heads of the first layer are soft, the next is sharp; the last has zero queries and attends to all alike."""
    model: Any = gpt2()
    with torch.no_grad():
        for block, sharper in zip(model.h, (2, 16), strict=True):
            block.attn.c_attn.weight[:, :32] *= sharper  # queries and keys; values are the last 16 columns
        model.h[1].attn.c_attn.weight[:, 8:16] = 0
        model.h[1].attn.c_attn.bias[8:16] = 0
    return model


ARCHITECTURES = {
    "BERT": lambda: known_bert(3),
    "GPT-2": gpt2,
    "Llama": lambda: hf.LlamaModel(_eager(hf.LlamaConfig(**GROUPED))),
    "OLMo-2": lambda: hf.Olmo2Model(_eager(hf.Olmo2Config(**GROUPED))),
    "T5": lambda: hf.T5Model(
        _eager(hf.T5Config(num_layers=2, d_model=16, d_kv=8, num_heads=2, d_ff=24, vocab_size=40, **TOKENS))
    ),
    "Mixtral": lambda: hf.MixtralModel(
        _eager(hf.MixtralConfig(**GROUPED, num_local_experts=3, num_experts_per_tok=2))
    ),
}


def network(architecture: str) -> nn.Module:
    """A small one in float64."""
    return fill(ARCHITECTURES[architecture](), 3).double().eval()


def token_ids(key: str, rows: int = 3, length: int = 9) -> Tensor:
    return torch.from_numpy(integers(key, (rows, length), 3, 40))


def batches() -> list[dict[str, Tensor]]:
    """Two batches of token ids; in the first, one sentence is padded."""
    mask = torch.ones(3, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    return [
        {"input_ids": token_ids("ids 0"), "attention_mask": mask},
        {"input_ids": token_ids("ids 1", 2, 7), "attention_mask": torch.ones(2, 7, dtype=torch.int64)},
    ]


# --- text ------------------------------------------------------------------------------------------


def write_corpus(folder: Path) -> Path:
    """Three files of sentences over ten words, in which each word makes some others more likely."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 48), ("valid", 12), ("test", 12)):
        lines = []
        for i in range(count):
            drawn = integers(f"{part} {i}", (int(integers(f"{part} {i} length", (1,), 3, 9)[0]),), 0, 4)
            words = np.cumsum(drawn) % 10
            lines.append(" ".join(f"w{word}" for word in words.tolist()))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    return folder
