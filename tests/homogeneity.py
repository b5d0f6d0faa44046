"""Networks under scaled weights, for tests."""

import math

import torch

from normgrowth.network.scaled_weights import scaled_weights


def scaled(model, c, *args):
    """f(x; cθ)."""
    with scaled_weights(model, c), torch.no_grad():
        return model(*args)


def slope(f, low, high):
    """Of log‖f(c)‖ against log c."""
    return math.log(f(high).norm() / f(low).norm()) / math.log(high / low)
