"""The meaning of a component of a name: words that codebases use for attention, feedforward, experts, norms and heads.

The rules are based on words, not on architectures. The innermost meaningful component decides, given the components
around it: in `attention.output.dense`, `dense` has no meaning; `output` within attention is the output projection.
"""

import re
from collections.abc import Mapping, Set
from functools import lru_cache

# Models repeat few words many times, so the meaning of each word is cached.
remember = lru_cache(maxsize=1 << 14)


def match(patterns: Mapping[str, re.Pattern[str]], word: str) -> str:
    """The meaning whose pattern matches the whole word, or ""."""
    return next((meaning for meaning, pattern in patterns.items() if pattern.fullmatch(word)), "")


_NEUTRAL = frozenset(("", "weight", "bias", "kernel", "attributes", "variable_value"))
_NORM = re.compile(r"norm|(?:^|_)(?:ln|bn|rms)(?:_|\d|$)")
_POSITION = re.compile(
    r"(?:^|_)(?:pos(?!_ff)|positions?|positional|relpos|relative|distance|wpe)(?:_|$)|^rel_(?!att)|^r$|^r_[wrs]_bias$"
)
_EMBEDDING = re.compile(r"embed|(?:^|_)emb|^wte$|^shared$|(?:^|_)tokens?$")
_HEAD = re.compile(
    r"(?:\w+_)?(?:heads?|classifier|pooler|predictions|logits)|cls|score|qa_outputs|embed_out|unembed|lm_loss"
    r"|vocab_(?:transform|projector)|pred_layer|seq(?:uence)?_(?:relationship|summary)|(?:text|visual)_projection"
    r"|output_(?:layer|projection)|logits_\w+"
)
# In Llama's original code, OLMo and Whisper.
_HEAD_IF_LAST = ("output", "decoder", "generator", "ff_out", "proj_out")
_ATTENTION = re.compile(r"(?:attn|attention|(?:^|_)att$|^sa$|mha)(?!\w*(?:layer|block)s$)")
_MIXER = re.compile(r"mixer|mamba\d?|ssm|conv(?:_module)?")
_FORWARD = re.compile(
    r"\w*mlps?|ff[nw]?s?(?:_\w+|\d+)?|ffwd|\w*ffn|\w*feed_?forward\w*|densereludense|intermediate\w*|\w*experts?|\w*moe"
    r"|router|(?:\w+_)?gate|(?:linear_|c_)?fc(?:_?\w+)?|lin(?:ear)?_?\d|wi(?:_\d)?|w_?[123]|dense_(?:h_to_4h|4h_to_h)"
    r"|(?:gate|up|down)(?:_up)?_proj\w*"
)
_EXPERTS = re.compile(r"\w*experts?(?:_\d+)?")
_MIXTURE = re.compile(r"\w*moe")
_ROUTER = re.compile(r"router|\w*experts?_gate")  # Qwen weighs its shared expert with a gate
_FUSED = re.compile(
    r"c_attn|att_proj|in_proj(?:_weight|_bias)?|(?:(?:to|linear|attn|in_proj)_)?w?q?kv(?:_\w+)?|(?:query_)?key_value"
)
_SINGLE = {
    f"attention.{word}": re.compile(
        rf"(?:(?:to|linear|attn|in_proj|projection|w|b)_)?w?(?:{word[0]}|{word})"
        r"(?:_(?:proj|lin|linear|dense|bias|weight|layer|head|global|attn|[ab]))*"
    )
    for word in ("query", "key", "value")
}
_OUTPUT = re.compile(
    r"(?:(?:to|linear|attn|c|post)_)?(?:o|out|output|proj|projection|dense|wo)(?:_(?:proj|lin|dense|layer))?|[wb]_o"
)
_SURELY_OUTPUT = re.compile(r"(?:to|attn)_out(?:put)?|attn_proj|(?:o|out)_(?:proj|lin)|[wb]_o")


@remember
def split(text: str) -> tuple[str, ...]:
    return tuple(word.strip("_") for word in re.split(r"[./:]", text.lower()))


@remember
def role_of(text: str, inside: bool) -> str:
    """The role from the innermost meaningful component. inside: within a block, where there are no heads."""
    words = [word for word in split(text) if word not in _NEUTRAL]
    if words and not inside and not _NORM.search(words[-1]):
        is_head = words[-1] in _HEAD_IF_LAST or any(map(_HEAD.fullmatch, words))
        if is_head:
            return "head"
    within = [""]  # for each word, the innermost context before it
    for word in words:
        within.append(context(word) or within[-1])
    found = (_word_role(word, around) for word, around in zip(reversed(words), within[-2::-1], strict=True))
    return next(filter(None, found), "other")


@remember
def mixture_of(text: str) -> tuple[str, ...] | None:
    """The module in which a name has its router or experts, or None if it has neither."""
    words = split(text)
    for at, word in enumerate(words):
        if _EXPERTS.fullmatch(word) or _ROUTER.fullmatch(word):
            return words[:at]
        if word == "gate" and at > 0 and _MIXTURE.fullmatch(words[at - 1]):
            return words[:at]
    return None


def mixture_role(text: str, mixtures: Set[tuple[str, ...]]) -> str:
    """The role of a feedforward parameter: router, experts, or feedforward where there is no mixture.

    A `gate` is a router only in a module that has experts: in a gated feedforward it is a projection.
    """
    words = split(text)
    if any(
        _ROUTER.fullmatch(word) or (word == "gate" and words[:at] in mixtures)
        for at, word in enumerate(words)
    ):
        return "router"
    if any(_EXPERTS.fullmatch(word) for word in words):
        return "experts"
    inside = any(_MIXTURE.fullmatch(word) and words[: at + 1] in mixtures for at, word in enumerate(words))
    return "experts" if inside else "feedforward"


@remember
def context(word: str) -> str:
    if _ATTENTION.search(word):
        return "attention"
    if _FORWARD.fullmatch(word):
        return "feedforward"
    return "mixer" if _MIXER.fullmatch(word) else ""


@remember
def _word_role(word: str, within: str) -> str:
    """The role of a component, given the component around it; "" if it has no meaning."""
    if _NORM.search(word):
        return "norm"
    if _POSITION.search(word):
        return "position"
    if within != "feedforward":
        if _FUSED.fullmatch(word) and (within == "attention" or word != "in_proj"):
            return "attention.qkv"
        if role := match(_SINGLE, word):
            return role
    if _EMBEDDING.search(word):
        return "embedding"
    if (_OUTPUT.fullmatch(word) and within == "attention") or (_SURELY_OUTPUT.fullmatch(word) and not within):
        return "attention.output"
    if _FORWARD.fullmatch(word) or (word.startswith("output") and not within):
        return "other" if within == "attention" else "feedforward"
    return "other" if context(word) == "attention" else ""
