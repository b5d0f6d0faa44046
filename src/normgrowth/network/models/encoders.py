"""The encoder of the paper (Definitions 4 to 6) and two variants with the norm at other places.

With f an attention or a feedforward sublayer, x the residual stream and LN a layer norm:

    paper_pre_norm   x + LN(f(x))   Definitions 5 and 6: the paper calls it pre-norm, since LN comes
                                    before the residual sum
    usual_pre_norm   x + f(LN(x))   the usual meaning of pre-norm (Xiong et al., 2020)
    post_norm        LN(x + f(x))   Vaswani et al. (2017), BERT

They follow the paper's text: ReLU, scores over √d_k, no dropout, PyTorch's default initialization
(§A), and a causal mask that hides the future. Where the text gives no details, they follow BERT and the authors'
code: learned positions added to the tokens, and no norm on the embeddings. LN divides by the standard
deviation, as in PyTorch; the paper divides by the norm, which is the same up to a factor √width in the gain.

Degrees. f(x; cθ) grows like c^k as c grows: embeddings have k = 1, a linear map adds 1, a norm resets k to 0 and
its gain adds 1, attention weights have 0. So a sublayer adds 2 to the degree of its input (values and output, or two
linear maps; the scores only choose). A sum has the highest degree of its terms.

    paper_pre_norm   1   stream 1, branch 1: all terms stay
    post_norm        1   stream 1, branch 3 before the norm: only the branch remains in the limit, and the
                         residual stream vanishes
    usual_pre_norm   3   stream 1, branch 3 in the first sublayer, then 3 and 3: the embeddings vanish from the
                         stream, but the first norm still reads them; 1 after a final norm

A linear head adds 1. Without biases, these degrees are exact except for terms that vanish (eps, lower degrees, the
softness of attention). They also hold with biases: the bias of a linear map has degree 1 and vanishes
compared with the product of degree 2 or 3; the bias of a norm has degree 1, like its gain, and stays.

Norms without parameters have degree 0. Then paper_pre_norm has degree 1 (all branches have 0 and vanish, and only the
embeddings remain), post_norm 0, usual_pre_norm 2, or 0 after a final norm. The first linear map of a sublayer then has
degree 1, so its bias stays (except in paper_pre_norm).

Shapes: B sequences, T tokens, D width, H heads.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from normgrowth.errors import InputError

Kind = Literal["paper_pre_norm", "usual_pre_norm", "post_norm"]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of an encoder. Apart from `vocabulary` and `max_length`, defaults are those of the paper (§A)."""

    vocabulary: int
    max_length: int
    kind: Kind = "paper_pre_norm"
    width: int = 768
    layers: int = 12
    heads: int = 12
    feedforward: int = 512
    causal: bool = True
    leaking: bool = False  # the mask of the authors' code, for comparison only: see `_leaking_attention`
    bias: bool = True  # biases of linear maps and of norms
    norm_gain: bool = True  # False: norms have no parameters
    final_norm: bool = False  # a last norm on the stream; not with post_norm, which ends with a norm
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        for name in ("vocabulary", "max_length", "width", "layers", "heads", "feedforward"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise InputError(f"width {self.width} is not divisible by {self.heads} heads")
        if self.final_norm and self.kind == "post_norm":
            raise InputError("post_norm ends with a norm: final_norm is for the two pre-norms")
        if self.leaking and not self.causal:
            raise InputError("leaking=True is a variant of the causal mask and needs causal=True")
        if not self.eps >= 0:
            raise InputError(f"eps must be >= 0, got {self.eps}")

    @property
    def vocab_size(self) -> int:
        """`vocabulary` under the name in transformers configs."""
        return self.vocabulary

    @property
    def max_position_embeddings(self) -> int:
        return self.max_length

    @property
    def degree(self) -> int:
        """The degree of the encoder's output in its parameters (see the top of this file)."""
        norm = 1 if self.norm_gain else 0
        if self.final_norm or self.kind == "post_norm":
            return norm
        return 1 if self.kind == "paper_pre_norm" else norm + 2


class Attention(nn.Module):
    """Definition 4 for all heads at once, and the W of Definition 5.

    The fused backward recomputes the attention weights as exp(score − log Σ exp), which loses all digits if scores are
    large. With parameters scaled by 100 in float32 or 10⁴ in float64, gradients are wrong; outputs are correct. For
    such gradients use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.heads = config.heads
        self.causal, self.leaking = config.causal, config.leaking
        self.query = nn.Linear(config.width, config.width, config.bias)
        self.key = nn.Linear(config.width, config.width, config.bias)
        self.value = nn.Linear(config.width, config.width, config.bias)
        self.output = nn.Linear(config.width, config.width, config.bias)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        q, k, v = (self._split(linear(x)) for linear in (self.query, self.key, self.value))
        if self.leaking:
            h = _leaking_attention(q, k, v, visible)
        else:
            h = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, is_causal=self.causal and visible is None
            )
        return self.output(h.transpose(1, 2).flatten(2))  # (B, H, T, D/H) -> (B, T, D)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, T, D) -> (B, H, T, D/H)


def _leaking_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """The attention of the authors' code: scores of future positions are multiplied by 0, which does not hide them.

    Every position sees the whole sequence. If all other scores of a query are negative, the future wins. Unlike the
    authors' code, padding is hidden if `visible`, here (B, 1, 1 or T, T), marks it.
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5  # (B, H, T, T)
    scores = scores * torch.ones(scores.shape[-2:], dtype=scores.dtype, device=scores.device).tril()
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


class Feedforward(nn.Module):
    """The two linear maps of Definition 6."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.inner = nn.Linear(config.width, config.feedforward, config.bias)
        self.output = nn.Linear(config.feedforward, config.width, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(functional.relu(self.inner(x)))


class EncoderBlock(nn.Module):
    """An attention and a feedforward sublayer, each with its norm; subclasses combine them."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = _norm(config)
        self.feedforward = Feedforward(config)
        self.feedforward_norm = _norm(config)


class PaperPreNormBlock(EncoderBlock):
    """x + LN(f(x)), Definitions 5 and 6. Degree 1: stream and branches have the same degree."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attention_norm(self.attention(x, visible))
        return x + self.feedforward_norm(self.feedforward(x))


class UsualPreNormBlock(EncoderBlock):
    """x + f(LN(x)). Degree 3: the branches have degree 3 and outgrow the embeddings."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), visible)
        return x + self.feedforward(self.feedforward_norm(x))


class PostNormBlock(EncoderBlock):
    """LN(x + f(x)). Degree 1, from the gain: in the sum the branch has degree 3, and the stream vanishes."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, visible))
        return self.feedforward_norm(x + self.feedforward(x))


BLOCKS: dict[Kind, type[EncoderBlock]] = {
    "paper_pre_norm": PaperPreNormBlock,
    "usual_pre_norm": UsualPreNormBlock,
    "post_norm": PostNormBlock,
}


class Encoder(nn.Module):
    """Token ids -> states (B, T, D), of degree `config.degree` in the parameters.

    The degree is 1 for paper_pre_norm and post_norm, 3 for usual_pre_norm, 1 with a final norm.

    `mask` (B, T) is true at tokens and false at padding, on either side. No real token sees padding or counts it as a
    position, so padding does not change the states of real tokens; states at padding are meaningless. A causal model
    with padding on the right needs no mask: the causal mask hides the padding, and attention is faster without a
    second mask.

    With `return_states`, returns a list: the embeddings and the stream after each block. The last entry, after the
    final norm if there is one, is the output without `return_states`.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.max_length, config.width)
        self.blocks = nn.ModuleList(BLOCKS[config.kind](config) for _ in range(config.layers))
        self.final_norm = _norm(config) if config.final_norm else nn.Identity()

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, *, return_states: bool = False
    ) -> Tensor | list[Tensor]:
        length = ids.shape[1]
        if length > self.config.max_length:
            raise InputError(f"input has {length} tokens, but max_length is {self.config.max_length}")
        if mask is None:
            positions, visible = torch.arange(length, device=ids.device), None
        else:
            if mask.shape != ids.shape:
                raise InputError(f"mask has shape {tuple(mask.shape)}, but ids have shape {tuple(ids.shape)}")
            mask = mask.bool()
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            visible = self._visible(mask)
        x = self.token_embedding(ids) + self.position_embedding(positions)
        states = [x]
        for block in self.blocks:
            x = block(x, visible)
            if return_states:
                states.append(x)
        x = self.final_norm(x)
        return [*states[:-1], x] if return_states else x

    def _visible(self, mask: Tensor) -> Tensor:
        """The keys that each query sees, (B, 1, T, T). Padding sees itself, so that its softmax is defined."""
        length = mask.shape[1]
        itself = torch.eye(length, dtype=torch.bool, device=mask.device)
        seen = mask[:, None, None, :]  # (B, 1, 1, T)
        if self.config.causal and not self.config.leaking:
            seen = seen & torch.ones_like(itself).tril()
        return seen | itself


class Classifier(nn.Module):
    """An encoder and a linear head on each token's state: logits (B, T, classes), one degree higher.

    With `return_states`, returns the logits and the encoder's states. `bias`: whether the head has a bias (default: if
    the encoder has biases).
    """

    def __init__(self, config: EncoderConfig, classes: int, *, bias: bool | None = None):
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.width, classes, config.bias if bias is None else bias)

    @property
    def degree(self) -> int:
        return self.config.degree + 1

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, *, return_states: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        states = self.encoder(ids, mask, return_states=return_states)
        return (self.head(states[-1]), states) if return_states else self.head(states)


class LanguageModel(Classifier):
    """Logits over the vocabulary, of degree `config.degree` + 1; for the next token if the encoder is causal.

    `tied`: the head's weight is the token embedding, initialized like it (normal with variance 1).
    """

    def __init__(self, config: EncoderConfig, *, tied: bool = False, bias: bool | None = None):
        super().__init__(config, config.vocabulary, bias=bias)
        if tied:
            self.head.weight = self.encoder.token_embedding.weight


def _norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, config.eps, config.norm_gain, config.bias)
