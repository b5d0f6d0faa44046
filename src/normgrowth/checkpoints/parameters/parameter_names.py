"""The block and the role of a tensor, inferred from its name, and whether a norm counts the tensor.

A checkpoint is a flat list of names, and every codebase has its own naming scheme. Two rules hold for all:

- A block is a member of a numbered list that contains attention, or the module around attention outside of any
  list (`normgrowth.checkpoints.parameters.blocks`).
- The innermost meaningful component of a name decides the role. In `attention.output.dense`, `dense` has no
  meaning; `output` within attention is the output projection.

So the rules are based on words, not on architectures. Names from PyTorch ("." between components) and from TensorFlow
("/") are treated alike. If a name is ambiguous (is this `bias` a causal mask?), shape and dtype decide.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Literal

from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.parameters.blocks import (
    DEFAULT_INCLUDE,
    INCLUDE_CHOICES,
    Stack,
    find_stacks,
    inner_number,
    locate,
    member,
    whole_name,
)
from normgrowth.checkpoints.parameters.roles import (
    context,
    match,
    mixture_of,
    mixture_role,
    remember,
    role_of,
    split,
)
from normgrowth.errors import InputError

__all__ = ["INCLUDE_CHOICES", "ROLES", "Reading", "read_names"]

ROLES = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "attention.qkv",  # fused; also keys and values only
    "feedforward",
    "router",  # in a mixture of experts
    "experts",  # also shared ones
    "norm",
    "embedding",
    "position",
    "head",
    "other",
    "buffer",
    "optimizer",
)

Kind = Literal["parameter", "buffer", "optimizer", "tied"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One tensor with its block and role. reason: why it is counted or not, for display."""

    name: str
    stack: str  # its name; "layer" in a model with one stack of blocks; "" outside of blocks
    layer: int | None  # its number in the checkpoint
    role: str
    counted: bool
    reason: str
    tied_to: str | None = None  # another name of the same tensor, which comes first
    matrix: bool = True  # at least two dimensions; False for gains, biases and other vectors

    @property
    def kind(self) -> Kind:
        """The kind of tensor; "tied" is another name of a parameter."""
        if self.role == "buffer" or self.role == "optimizer":
            return self.role
        return "parameter" if self.tied_to is None else "tied"

    @property
    def is_parameter(self) -> bool:
        return self.kind == "parameter"

    @property
    def layer_name(self) -> str | None:
        return None if self.layer is None else f"{self.stack}.{self.layer}"


def read_names(
    tensors: Mapping[str, Tensor],
    *,
    include: str = DEFAULT_INCLUDE,
    select: str | None = None,
    exclude: str | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Reading]:
    """A Reading for every name of an index, in its order.

    The whole index is needed, because a single name does not show how many stacks the model has. `select` replaces
    `include`, so it can choose embeddings and scalars; `exclude` removes tensors from either. Buffers, optimizer
    state and the additional names of a tied tensor are never counted.
    """
    if include not in INCLUDE_CHOICES:
        raise InputError(f"unknown include {include!r}; choose one of {', '.join(INCLUDE_CHOICES)}")
    wanted, unwanted = _compile("select", select), _compile("exclude", exclude)
    places = locate(tensors)
    stacks = find_stacks([place for place in places if not (_state(place[0] or "") or _state(place[2]))])
    members = {
        _in_block(path, rest, stacks.of(path, rest)) for path, rest in {(p, rest) for p, _, rest in places}
    }
    mixtures = {module for name in members if (module := mixture_of(name)) is not None}
    kinds = {stack.label: stack.kind for stack in stacks}
    chosen = set(kinds)
    if "coder" in include and len(kinds) > 1:
        chosen = {label for label, kind in kinds.items() if kind in include.split(",")}
        if not chosen and wanted is None:
            raise InputError(
                f"include {include!r}: this model has no such blocks; its stacks are {', '.join(kinds)}"
            )

    # Members of a list are alike, so each kind of tensor is classified only once, which is fast.
    judged: dict[object, tuple[Stack | None, str, bool, str]] = {}
    readings: dict[str, Reading] = {}
    for (name, tensor), (path, index, rest) in zip(tensors.items(), places, strict=True):
        key = (path, rest, tensor.shape, tensor.dtype)
        verdict = judged.get(key)
        if verdict is None:
            verdict = _judge(path, rest, tensor, stacks.of(path, rest), include, chosen, mixtures)
            judged[key] = verdict
        stack, role, counted, reason = verdict
        matrix = sum(size > 1 for size in tensor.shape) > 1
        tied_to = None
        if role not in ("buffer", "optimizer"):
            if (tied_to := aliases.get(name)) is not None:
                counted, reason = False, f"tied to {tied_to}"
            elif wanted is not None:
                counted = wanted.search(name) is not None
                reason = "selected" if counted else "not selected"
            if counted and unwanted is not None and unwanted.search(name):
                counted, reason = False, "excluded"
        if stack is None:
            readings[name] = Reading(name, "", None, role, counted, reason, tied_to, matrix)
        else:
            if stack.inner > 1:
                index = index * stack.inner + inner_number(rest)
            number = index if stack.numbered else 0
            readings[name] = Reading(name, stack.label, number, role, counted, reason, tied_to, matrix)
    return readings


def _compile(option: str, pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"{option} {pattern!r} is not a regular expression: {error}") from None


# Which tensors are counted -----------------------------------------------------------------------------------------


def _judge(
    path: str | None,
    rest: str,
    tensor: Tensor,
    stack: Stack | None,
    include: str,
    chosen: set[str],
    mixtures: Set[tuple[str, ...]],
) -> tuple[Stack | None, str, bool, str]:
    """Stack, role, counted and reason, which all members of a list have in common."""
    if state := _state(rest) or _state(path or ""):
        return None, "optimizer", False, state
    role = ""
    whole = whole_name(path, rest)
    if stack is not None:
        role = role_of(member(path or "", rest) if stack.numbered else stack.within(whole), True)
        if (role == "embedding" and "att" not in rest) or (role == "position" and not stack.attends):
            stack = None  # it is in the first stage of a pipeline, or in the first layer of a Keras model
        elif not stack.numbered and stack.holds_outside(whole, role):
            stack = None
        elif stack.recurrent and role.startswith("attention."):
            role = "other"
    if stack is None:
        role = role_of(whole, False)
    if role == "feedforward":
        role = mixture_role(_in_block(path, rest, stack), mixtures)
    if what := _buffer(whole, tensor):
        return stack, "buffer", False, f"buffer: {what}"
    if include == "all":
        return stack, role, True, "in a block" if stack else "include all"
    if prod(tensor.shape) <= 1:
        return stack, role, False, "scalar"
    if stack is None:
        return stack, role, False, role if role in ("embedding", "position", "head") else "outside the blocks"
    if stack.label not in chosen:
        return stack, role, False, f"not in the {include}"
    return stack, role, True, "in a block"


def _in_block(path: str | None, rest: str, stack: Stack | None) -> str:
    """The name from its block on: a whole model may be called an expert. Outside numbered blocks, the whole name."""
    return rest if stack is not None and stack.numbered else whole_name(path, rest)


# Matched against whole components: a model may be called Optimus, or have a momentum encoder.
_STATES = {
    "optimizer state": re.compile(
        r"optim(izers?)?|optimizer_(states?|slot)|opt_state|param_(states|groups)|(max_)?exp_avg(_sq)?|exp_inf"
        r"|exp_avg_sq_(row|col)|momentum_buffer|square_avg|acc_delta|\w+_slot_v?[cmrv]|adam_[mv]|adam(_1)?"
        r"|adafactor(_1)?|exponentialmovingaverage"
    ),
    "training state": re.compile(
        r"global_step|save_counter|checkpointable_object_graph|beta[12]_power|lr_schedulers?|rng_state"
        r"|grad_scaler|train_state|dataloader|ema(_model)?|model_ema|keras_api|compiled_metrics"
    ),
}
_BUFFERS = {
    "mask": re.compile(r"masked_bias|tril|(\w+_)?mask|ignore"),
    "rotary table": re.compile(r"(original_)?inv_freq|(cos|sin)_cached|freqs_cis"),
    "position table": re.compile(r"position_ids|relative_(position_index|coords_table)|pe|alibi(_slopes)?"),
    "token types": re.compile(r"token_type_ids"),
    "running statistics": re.compile(
        r"(running|moving)_(mean|var(iance)?)|num_batches_tracked|cluster_(size|usage)|embed_(avg|sum)"
    ),
    "routing balance": re.compile(r"e_score_correction_bias|balancing_biases"),
    "quantization": re.compile(
        r"(act|fc|weight)_scaling_factor|(x|input|output)_(min|max)|\w+_integer|weight_scale(_inv)?|input_scale"
        r"|q?zeros|scales|g_idx|scb|(nested_)?(absmax|quant_map)|quant_state|bitsandbytes\w*"
    ),
    "constant": re.compile(
        r"final_logits_bias|float_tensor|version|inited|initialized|layer_scalar|slope_rate"
        r"|(query|key|diagonal)_decay|\w+_points_scale"
    ),
}


@remember
def _state(text: str) -> str:
    return next((state for word in split(text) if (state := match(_STATES, word))), "")


def _buffer(name: str, tensor: Tensor) -> str:
    """The kind of buffer, or "" for a parameter. `attn.bias` is a parameter unless it has the shape of a mask."""
    words = [word for word in split(name) if word not in ("", "attributes", "variable_value")]
    leaf, parent = words[-1] if words else "", words[-2] if len(words) > 1 else ""
    if what := match(_BUFFERS, leaf):
        return what
    if leaf == "bias" and len(tensor.shape) > 2 and context(parent) == "attention":
        *ones, rows, columns = tensor.shape
        if rows == columns and prod(ones) == 1:
            return "causal mask"
    if leaf not in ("weight", "bias") and ("rotary" in parent or parent == "rope"):
        return "rotary table"
    if leaf in ("u", "v") and "parametrizations" in words:
        return "power iteration of spectral_norm"
    if "sinusoid" in name or (leaf == "weights" and parent == "embed_positions"):
        return "position table"
    # 8-bit matrices are weights; other integers are packed, so their values have no meaning by themselves.
    quantized = tensor.dtype == "I8" and leaf in ("weight", "kernel") and len(tensor.shape) > 1
    if tensor.dtype[:1] in ("I", "U") and not quantized:
        return "integers"  # not trained by gradients
    return "booleans" if tensor.dtype == "BOOL" else ""
