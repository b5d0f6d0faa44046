"""Statements that are true, or assumed, with a limit that readers should know. Each has the numbers that show it."""

from math import cos, exp, isfinite, log, pi, sin
from typing import Self

from normgrowth.paper.claim import Discrepancy, number
from normgrowth.paper.discrepancies.departures import published_line
from normgrowth.paper.evidence import Evidence, MissingEvidence
from normgrowth.paper.published.lm_runs import lm_run
from normgrowth.paper.stages import figure2_forms as forms

FIGURE_2 = ("saturation_pretrained", "saturation_random_init")
PTB_FREQUENCIES = 6.532  # loss of word frequencies on the development part, in nats per token


class ApproximateEuler(Discrepancy):
    """f(θ) = θ + e^−θ·sin(e^2θ) where e^2θ = 2000π: |f(2θ)/2 − f(θ)|, and f′(θ), which degree 0 would keep near 1."""

    id, where = "euler", "§5.2"
    stated = "Gradients of the classifier's output are assumed to have degree 1, after Euler's theorem."
    correct = (
        "In the networks measured here they do (claim homogeneous-gradient). But the theorem is about exactly "
        "homogeneous functions: in an approximately homogeneous one a small scaling error does not bound the gradient."
    )
    error: float = number("scaling error of f, k = 1")
    slope: float = number("derivative of f, which degree 0 would keep at 1:")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        def f(theta: float) -> float:
            return theta + exp(-theta) * sin(exp(2 * theta))

        theta = log(2000 * pi) / 2
        u = exp(2 * theta)
        slope = 1 - exp(-theta) * sin(u) + 2 * exp(theta) * cos(u)
        return cls(abs(f(2 * theta) / 2 - f(theta)), slope)

    def differs(self) -> bool:
        return self.error < 0.05 and abs(self.slope - 1) > 1


class VanishingAttention(Discrepancy):
    id, where, needs = "vanishing", "§5.2, §D", ("theory",)
    stated = "Transformer encoders without biases, as the paper defines them, have degree 1."
    correct = (
        "This is true. In other transformers, branches differ in degree, and branches of lower degree vanish: in gated "
        "networks such as Llama, all attention after the first layer."
    )
    turned: float = number("1 − cosine without later attention, c = 1")
    turned_scaled: float = number("the same at c = 1000")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        found = evidence.theory.vanishing
        return cls(found.turned, found.turned_scaled)

    def differs(self) -> bool:
        return self.turned > 0.01 and self.turned_scaled < 1e-6


class DropoutInRandomT5(Discrepancy):
    """Means over layers at c = 1000; the decoder reads its start token, as in the authors' script."""

    id, where, needs = "t5-dropout", "§4.1, Fig. 2", ("figure2_forms",)
    stated = "The pretrained T5 is closer to saturation than T5 with random weights."
    correct = (
        "The published means say so. But without dropout, the random decoder that the script measures is about as "
        "saturated as the published trained one: the difference may be due to dropout."
    )
    trained: float = number("published, trained")
    random: float = number("published, random")
    evaluation: float = number("here, random, without dropout")
    training: float = number("here, random, with dropout")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        trained, random = (published_line("t5-base", table).mean() for table in FIGURE_2)
        known = evidence.figure2_forms
        return cls(trained, random, known[forms.START].mean(), known[forms.AS_PUBLISHED].mean())

    def differs(self) -> bool:
        return self.trained > self.random and self.evaluation > self.trained - 0.05


class PostNorm(Discrepancy):
    id, where, needs = "post-norm", "§3, §4.1, §4.3", ("language_models",)
    stated = "Post-norm language models grow, saturate, and perform less well than pre-norm ones."
    correct = (
        "On PTB the authors' post-norm models learned only word frequencies. With warm-up, they learn more: those "
        "of the paper show little about trained post-norm models."
    )
    theirs: float = number("their dev loss on PTB, best of 5 epochs")
    frequencies: float = number("word frequencies on PTB")
    gain: float = number("post-norm here: below word frequencies by")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models = evidence.language_models.where(kind="post_norm", optimizer="adamw", leaking=False)
        gains = [model.frequency_loss - model.last("dev_loss") for model in models]
        if not all(map(isfinite, gains)):
            raise MissingEvidence("language_models", "its records lack the loss of word frequencies")
        return cls(lm_run("control", "loss").min(), PTB_FREQUENCIES, min(gains))

    def differs(self) -> bool:
        return self.theirs > self.frequencies - 0.1 and self.gain > 0.1


class PlainSGD(Discrepancy):
    id, where, needs = "sgd", "§4.1", ("language_models",)
    stated = "Small language models, which §A trains with AdamW, reach a saturation of 1.00."
    correct = (
        "The level depends on the optimizer, as the text considers possible: it falls in the authors' runs with SGD, "
        "which the text does not mention, and is lower with SGD than with AdamW here."
    )
    after_1: float = number("their SGD, after 1 epoch")
    after_20: float = number("after 20")
    their_adamw: float = number("their AdamW, at the end")
    sgd: float = number("SGD here")
    adamw: float = number("AdamW here")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        theirs = lm_run("pre_norm-sgd-constant_lr", "saturation")
        their_adamw = lm_run("pre_norm", "saturation")[-1]
        here = (
            min(
                model.last("saturation")
                for model in evidence.language_models.where(
                    kind="paper_pre_norm", optimizer=optimizer, leaking=False
                )
            )
            for optimizer in ("sgd", "adamw")
        )
        return cls(theirs[1], theirs[-1], their_adamw, *here)

    def differs(self) -> bool:
        return self.after_20 < self.their_adamw - 0.02 and self.sgd < self.adamw - 0.02


class DecoupledDecay(Discrepancy):
    """What one step of PyTorch's AdamW, with its defaults and a zero gradient, subtracts from a weight of 1."""

    id, where = "decay", "§5.6, §F, eq. (3)"
    stated = "With weight decay, each step of gradient descent subtracts λθ."
    correct = "Figure 6 is made with PyTorch's AdamW, which subtracts ηλθ: its λ is not that of eq. (3)."
    printed: float = number("share of θ taken by a step, eq. (3)")
    adamw: float = number("by PyTorch's AdamW")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        import torch

        weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        optimizer = torch.optim.AdamW([weight])
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        return cls(optimizer.defaults["weight_decay"], 1 - weight.item())

    def differs(self) -> bool:
        return abs(self.adamw / self.printed - 1) > 0.01


CAVEATS: dict[str, type[Discrepancy]] = {
    one.id: one
    for one in (
        *(VanishingAttention, ApproximateEuler, DropoutInRandomT5),
        *(PostNorm, PlainSGD, DecoupledDecay),
    )
}
