"""Normalized margins: how far a language model ranks the right tokens first, whatever the size of its weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normgrowth.limit.growing_parameters.growing import growing_parameters


def token_margins(logits: Tensor, targets: Tensor) -> Tensor:
    """The logit of each target minus the largest other logit. logits: (tokens, vocabulary); targets: (tokens,)."""
    targets = targets[:, None]
    others = logits.scatter(1, targets, -torch.inf).amax(1)
    return logits.gather(1, targets)[:, 0] - others


def weight_norm(model: nn.Module, fixed: Sequence[str] = ()) -> float:
    """‖θ‖ of all parameters that grow; tied parameters count once."""
    squares = (one.detach().double().square().sum().item() for _, one in growing_parameters(model, fixed))
    return sum(squares) ** 0.5


def normalized(margin: float, norm: float, degree: float) -> float:
    """margin / ‖θ‖ᵏ, which does not change if all weights of a k-homogeneous network are multiplied by a number."""
    return margin / norm**degree
