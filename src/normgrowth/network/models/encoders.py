"""The encoder of the paper (Definitions 4 to 6) and its two cousins, which differ in where the norm sits.

With f an attention or a feedforward sublayer, x the residual stream and LN a layer norm:

    paper_pre_norm   x + LN(f(x))   Definitions 5 and 6: the paper calls it pre-norm, since LN comes
                                    before the residual sum
    usual_pre_norm   x + f(LN(x))   what everyone else calls pre-norm (Xiong et al., 2020)
    post_norm        LN(x + f(x))   Vaswani et al. (2017), BERT

They follow the paper's text: ReLU, scores over √d_k, no dropout, PyTorch's default initialization
(§A), and a causal mask that hides the future. Where the text is silent, they follow BERT and the authors'
code: learned positions added to the tokens, and no norm on the embeddings. LN divides by the standard
deviation, as PyTorch does; the paper's, by the norm, is the same up to √width, which the gain absorbs.

Degrees. f(x; cθ) grows like c^k as c grows: embeddings have k = 1, a linear map adds 1, a norm gives 0 and
its gain 1, attention weights have 0. A sublayer thus has 2 more than its input (values and output, or two
linear maps; the scores only choose). A sum keeps its highest degree.

    paper_pre_norm   1   1 + 1: all terms stay
    post_norm        1   the norm resets x (1) + f(x) (3), of which the branch alone decides the limit:
                         the residual stream vanishes
    usual_pre_norm   3   1 + 3 in the first sublayer, 3 + 3 after: the embeddings vanish from the stream,
                         though the first norm still reads them; 1 after a final norm

A linear head adds 1. Without biases these hold up to terms that vanish (eps, lower degrees, the softness of
attention). With biases they hold too: that of a linear map has degree 1 where the product has 2 or 3, and
vanishes; that of a norm has 1, like its gain, and stays.

Norms without parameters have degree 0. Then paper_pre_norm has 1 (its branches have 0 and vanish, all of
them: the embeddings alone remain), post_norm 0, usual_pre_norm 2, and 0 after a final norm; and since the
first linear map of a sublayer then has degree 1, its bias stays (but in paper_pre_norm).

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
    """An encoder's shape. Apart from `vocabulary` and `max_length`, the defaults are the paper's (§A)."""

    vocabulary: int
    max_length: int
    kind: Kind = "paper_pre_norm"
    width: int = 768
    layers: int = 12
    heads: int = 12
    feedforward: int = 512
    causal: bool = True
    leaking: bool = False  # the mask of the authors' code, for comparison only: see `_leaking_attention`
    bias: bool = True  # of linear maps and of norms
    norm_gain: bool = True  # False: norms have no parameters
    final_norm: bool = False  # a last norm on the stream, where it is not normed anyway
    eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"kind {self.kind!r} is unknown; choose one of {', '.join(get_args(Kind))}")
        for name in ("vocabulary", "max_length", "width", "layers", "heads", "feedforward"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.width % self.heads:
            raise InputError(f"width {self.width} cannot be divided among {self.heads} heads")
        if self.final_norm and self.kind == "post_norm":
            raise InputError("post_norm ends with a norm: final_norm is for the two pre-norms")
        if self.leaking and not self.causal:
            raise InputError("leaking is a causal mask that leaks: it needs causal")
        if not self.eps >= 0:
            raise InputError(f"eps must not be negative, not {self.eps}")

    @property
    def vocab_size(self) -> int:
        """Under the name that configs of transformers have, so that a reader of these reads ours."""
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

    The fused backward computes the weights anew, as exp(score − log Σ exp), which loses all digits where
    scores are large: with weights scaled by 100 in float32, 10⁴ in float64, gradients are wrong. The outputs
    are not. For such gradients use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.
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
    """What the authors' code does: scores of the future are multiplied by 0, which hides nothing.

    Every position sees the whole sequence; where a query's scores are negative, the future wins. Padding is hidden
    truly if `visible`, here (B, 1, 1 or T, T), says where it is; their code does not hide it.
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


class Block(nn.Module):
    """An attention and a feedforward sublayer, each with its norm; how they are put together, its kinds say."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = _norm(config)
        self.feedforward = Feedforward(config)
        self.feedforward_norm = _norm(config)


class PaperPreNormBlock(Block):
    """x + LN(f(x)), Definitions 5 and 6. Degree 1: stream and branches alike."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attention_norm(self.attention(x, visible))
        return x + self.feedforward_norm(self.feedforward(x))


class UsualPreNormBlock(Block):
    """x + f(LN(x)). Degree 3: the branches have it, and outgrow the embeddings."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), visible)
        return x + self.feedforward(self.feedforward_norm(x))


class PostNormBlock(Block):
    """LN(x + f(x)). Degree 1, that of the gain: in the sums the branch has 3, and the stream vanishes."""

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.attention(x, visible))
        return self.feedforward_norm(x + self.feedforward(x))


BLOCKS: dict[Kind, type[Block]] = {
    "paper_pre_norm": PaperPreNormBlock,
    "usual_pre_norm": UsualPreNormBlock,
    "post_norm": PostNormBlock,
}


class Encoder(nn.Module):
    """Token ids -> states (B, T, D), of degree `config.degree` in the parameters.

    That is 1 for paper_pre_norm and post_norm, 3 for usual_pre_norm, 1 with a final norm.

    `mask` (B, T) is true where there is a token, false at padding, on either side. No real token sees padding
    or counts it as a position, so that padding changes nothing but the rows at padding, which mean nothing.
    A causal model whose padding is on the right needs no mask: what comes later is hidden anyway, and
    attention is faster without.

    With `return_states`, a list: the embeddings and the stream after each block, the last of them after the
    final norm if there is one. Its last entry is what is returned without.
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
            raise InputError(f"{length} tokens are more than max_length, {self.config.max_length}")
        if mask is None:
            positions, visible = torch.arange(length, device=ids.device), None
        else:
            if mask.shape != ids.shape:
                raise InputError(f"mask has shape {tuple(mask.shape)}, ids have {tuple(ids.shape)}")
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
        """Which keys each query sees, (B, 1, T, T). Padding sees itself, so that its softmax is defined."""
        length = mask.shape[1]
        itself = torch.eye(length, dtype=torch.bool, device=mask.device)
        seen = mask[:, None, None, :]  # (B, 1, 1, T)
        if self.config.causal and not self.config.leaking:
            seen = seen & torch.ones_like(itself).tril()
        return seen | itself


class Classifier(nn.Module):
    """An encoder and a linear head on each token's state: logits (B, T, classes), one degree more.

    With `return_states`, the logits and the encoder's states. `bias` is that of the head; by default there
    is one if the encoder has biases.
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
    """Logits over the vocabulary, of degree `config.degree` + 1: for the next token if the encoder is causal.

    `tied`: the head's weight is the token embedding, and starts as such, normal with variance 1.
    """

    def __init__(self, config: EncoderConfig, *, tied: bool = False, bias: bool | None = None):
        super().__init__(config, config.vocabulary, bias=bias)
        if tied:
            self.head.weight = self.encoder.token_embedding.weight


def _norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, config.eps, config.norm_gain, config.bias)
