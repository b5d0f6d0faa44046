"""Departures of the authors' code and runs from their text, each with the numbers of both sides.

The numbers of the authors' side come from models trained here in the same way, or else from their publication: T5's
numbers, Figure 2, and the plots of their language models (`lm_runs`).
"""

from math import sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from normgrowth.paper.claim import Discrepancy, number
from normgrowth.paper.claims.saturation_curves import bias_effect
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.lm_runs import lm_run
from normgrowth.paper.published.tables import published
from normgrowth.paper.stages import figure2_forms as forms

Floats = NDArray[np.float64]
T5_LAYER = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 768  # parameters of an encoder layer of T5-base
SCRIPT_RATE = 1e-2  # default of --lr in the authors' finetune_trans.py since commit 3932cb5 (10 May 2021)


class CausalMask(Discrepancy):
    id, where, needs = "mask", "code of the language models", ("language_models",)
    stated = "The causal mask multiplies scores by 0."
    correct = "Masked scores must be −∞: a score of 0 leaks the next word."
    true_mask: float = number("dev loss, true mask")
    their_mask: float = number("dev loss, their mask")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        models, losses = evidence.language_models, []
        for leaky in models.where(leaking=True):
            shared = ("kind", "optimizer", "corpus", "seed", "schedule")
            own = {name: getattr(leaky, name) for name in shared}
            (twin,) = models.where(leaking=False, **own)
            losses.append((twin.last("dev_loss"), leaky.last("dev_loss")))
        return cls(*min(losses, key=lambda pair: pair[1]))

    def differs(self) -> bool:
        return self.their_mask < self.true_mask - 0.1


class Padding(Discrepancy):
    id, where, needs = "padding", "code of Figure 3", ("language_models",)
    stated = "Attended positions are counted with padding, as query and as key."
    correct = "Padding does not count as a position."
    without: float = number("positions attended, of real tokens")
    counted: float = number("with padding counted")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        model = evidence.language_models.where(leaking=True)[0]
        return cls(*(model.of_heads(quantity).mean() for quantity in ("attended", "attended_window")))

    def differs(self) -> bool:
        return abs(self.counted / self.without - 1) > 0.1


class Perplexity(Discrepancy):
    id, where, needs = "perplexity", "code of the language models", ("language_models",)
    stated = "Perplexity is the mean over sentences of 2 to the loss in nats. Footnote 6 withdraws what was printed."
    correct = (
        "Perplexity is exp of the mean loss per token: base 2 requires bits, and the mean is over tokens."
    )
    per_token: float = number("exp of the mean loss per token")
    authors: float = number("mean over sentences of 2^loss")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        model = evidence.language_models.where(leaking=False, optimizer="adamw")[0]
        return cls(model.last("perplexity"), model.last("perplexity_authors"))

    def differs(self) -> bool:
        return abs(self.authors / self.per_token - 1) > 0.01


def their_alignment(dot: Floats, before: Floats, after: Floats, numel: int) -> Floats:
    """An upper bound of ⟨θ,δ⟩ / (‖θ‖ · ‖θ′ − ‖θ‖‖), where θ′ − ‖θ‖ is a vector minus a number.

    The norm of that difference is at least √n·‖θ‖ − ‖θ′‖ for any values.
    """
    return np.abs(dot) / (before * (sqrt(numel) * before - after))


class LayerAlignment(Discrepancy):
    id, where = "layer-alignment", "code of T5's alignment by layer"
    stated = (
        "The alignment of a layer, which no figure shows, is divided by ‖θ′ − ‖θ‖‖, a vector minus a norm."
    )
    correct = "cos(δ, θ) = ⟨δ,θ⟩/(‖δ‖‖θ‖). The authors' formula is near 0 for any step."
    largest: float = number("T5's layers: largest alignment")
    theirs: float = number("by their formula, at most")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        norms, steps = published("t5_norm_by_layer"), published("t5_steps_by_layer")
        correct, theirs = [], []
        for layer in np.unique(norms["layer"]).tolist():
            norm, own = norms.layer(layer)["norm"], steps.layer(layer)
            correct.append(np.abs(own["alignment"]).max())
            theirs.append(their_alignment(own["growth_alignment"] / 2, norm[:-1], norm[1:], T5_LAYER).max())
        return cls(max(correct), max(theirs))

    def differs(self) -> bool:
        return self.theirs < 0.1 * self.largest


class NormScope(Discrepancy):
    id, where = "norm-scope", "§A, Figure 1"
    stated = "The total of Figure 1 includes the decoder; its lines by layer are the encoder's."
    correct = "The text says that all norms are of encoder parameters."
    total: float = number("norm of T5 at step 0, Figure 1")
    encoder: float = number("of its 12 encoder layers together")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        layers = published("t5_norm_by_layer")
        encoder = layers["norm"][layers["step"] == 0]
        return cls(published("t5_norm")["norm"][0], float(np.linalg.norm(encoder)))

    def differs(self) -> bool:
        return self.total > 1.05 * self.encoder


def initial_norms(
    vocabulary: int, positions: int, layers: int = 12, width: int = 768, feedforward: int = 512
) -> tuple[float, float]:
    """The expected norms of the blocks and of all parameters of a language model with PyTorch's initialization.

    Weights and biases of linear maps are uniform in ±1/√inputs, gains are 1, embeddings are normal.
    """

    def linear(inputs: int, outputs: int) -> float:
        return (inputs + 1) * outputs / (3 * inputs)

    block = 4 * linear(width, width) + linear(width, feedforward) + linear(feedforward, width) + 2 * width
    rest = (vocabulary + positions) * width + linear(width, vocabulary)
    return sqrt(layers * block), sqrt(layers * block + rest)


class LanguageModelNorm(Discrepancy):
    id, where = "lm-norm", "§A, code of the language models"
    stated = "Plots in the repository show the norm of all parameters, or the mean norm of the columns of linear maps."
    correct = "The text advises norms of encoder parameters, without embeddings."
    blocks: float = number("norm of the blocks, at initialization")
    everything: float = number("of all parameters, embeddings too")
    sgd: float = number("their plots with SGD begin at")
    adamw: float = number("their plots with AdamW begin at")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        runs = (lm_run(run, "norm")[0] for run in ("pre_norm-sgd-constant_lr", "pre_norm"))
        return cls(*initial_norms(vocabulary=10_000, positions=83), *runs)

    def differs(self) -> bool:
        return all(abs(start / self.blocks - 1) > 0.05 for start in (self.sgd, self.adamw))


class LearningRate(Discrepancy):
    id, where = "learning-rate", "§A, script of the language models"
    stated = "The script's default learning rate is 0.01 since 10 May 2021; that of the published runs is not known."
    correct = "The text says that AdamW has PyTorch's default hyperparameters."
    default: float = number("PyTorch's default")
    script: float = number("the script's default")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        import torch

        weight = torch.nn.Parameter(torch.ones(1))
        return cls(torch.optim.AdamW([weight]).defaults["lr"], SCRIPT_RATE)

    def differs(self) -> bool:
        return abs(self.script / self.default - 1) > 0.01


class GridEncoder(Discrepancy):
    """How much the outputs of the first of 3 sentences of 5 tokens change, relative to their norm, if a word of it or
    another sentence changes; in PyTorch's encoder, built and called as in the script.
    """

    id, where = "grid-encoder", "§F, script of Figure 6"
    stated = (
        "The script's default is PyTorch's encoder without a mask, with dropout, and with batch and positions "
        "exchanged: a token attends to the same position in the other sentences of the batch, not to its own sentence."
    )
    correct = (
        "By §A the models have no dropout, by §4.3 masking prevents lookahead, and §F names no other encoder."
    )
    dropout: float = number("its dropout")
    own: float = number("other positions move by, when a word changes")
    others: float = number("outputs move by, when another sentence changes")

    @classmethod
    def measure(cls, _: Evidence) -> Self:
        import torch

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            layer = torch.nn.TransformerEncoderLayer(d_model=24, nhead=4, dim_feedforward=16)
            dropout = layer.dropout.p
            encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
            states = torch.randn(3, 5, 24)
            before = encoder(states)
            word, sentence = states.clone(), states.clone()
            word[0, 2] += 1
            sentence[1] += torch.randn(5, 24)
            rest = [0, 1, 3, 4]
            own = (encoder(word) - before)[0, rest].norm() / before[0, rest].norm()
            others = (encoder(sentence) - before)[0].norm() / before[0].norm()
        return cls(dropout, own.item(), others.item())

    def differs(self) -> bool:
        return self.dropout > 0 and self.own == 0 and self.others > 0.01


class BiasSwitch(Discrepancy):
    id, where, needs = "bias-switch", "code of Figure 4", ("scaling",)
    stated = "The switch affects only the classifier: the lines differ more by their random weights than by biases."
    correct = "The figure says that its lines are of encoders with and without biases."
    published: float = number("published lines with and without biases differ by")
    same_weights: float = number("the same weights with and without biases by")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        table = published("scaling_curves")
        biased, bare = (table["cosine_to_saturated"][table["bias"] == bias] for bias in ("bias", "no-bias"))
        return cls(np.abs(biased - bare).max(), bias_effect(evidence))

    def differs(self) -> bool:
        return self.published > 1.2 * self.same_weights


def published_line(model: str, table: str = "saturation_random_init") -> Floats:
    """The levels of a line of Figure 2, from the first layer on."""
    columns = published(table)
    return columns["cosine"][columns["model"] == model]


def distance(levels: Floats, line: Floats) -> float:
    """The mean over layers of the absolute difference."""
    return float(np.abs(levels - line).mean())


class DecoderLine(Discrepancy):
    """Levels of a random T5. The first layer of the decoder is measured with the sentence as its input, as in training;
    its course over depth in the form that is nearest to the figure: the start token alone, with dropout.
    """

    id, where, needs = "t5-line", "code of Figure 2", ("figure2_forms",)
    stated = "The T5 line of Figure 2 is the decoder's: the script reads the third output of each model."
    correct = "The text names no stack of T5; by §A, norms are those of the encoder, whose levels differ."
    published_first: float = number("published, first layer")
    encoder_first: float = number("encoder, first layer")
    decoder_first: float = number("decoder as the script reads it, first layer")
    published_rise: float = number("published, last minus first layer")
    encoder_rise: float = number("encoder, last minus first layer")
    decoder_rise: float = number("decoder as the script reads it, last minus first layer")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        known, line = evidence.figure2_forms, published_line("t5-base")
        encoder, decoder = known[forms.ENCODER], known[forms.AS_PUBLISHED]
        rises = (levels[-1] - levels[0] for levels in (line, encoder, decoder))
        return cls(line[0], encoder[0], decoder[0], *rises)

    def differs(self) -> bool:
        encoder, decoder = (
            abs(first - self.published_first) for first in (self.encoder_first, self.decoder_first)
        )
        return decoder < encoder and self.published_rise < 0 < self.encoder_rise


class MemoryLine(Discrepancy):
    id, where, needs = "xlnet-line", "code of Figure 2", ("figure2_forms",)
    stated = (
        "The line of the trained XLNet is the memory for the next segment, the inputs of the layers: its last point is "
        "layer 11 of 12."
    )
    correct = "The text speaks of the final layer."
    states: float = number("layers of XLNet")
    memory: float = number("layers in its memory")
    published: float = number("layers of the published line")
    difference: float = number("largest difference of memory and states, in these layers")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        states, memory = (evidence.figure2_forms[form] for form in (forms.STATES, forms.MEMORY))
        line = published_line("xlnet-base-cased", "saturation_pretrained")
        return cls(len(states), len(memory), len(line), np.abs(states[: len(memory)] - memory).max())

    def differs(self) -> bool:
        return self.memory == self.published < self.states and self.difference < 1e-3


class TrainingMode(Discrepancy):
    """Mean distance over layers from the published line of the random T5, whose decoder reads the start token."""

    id, where, needs = "random-mode", "code of Figure 2", ("figure2_forms",)
    stated = (
        "The random networks of Figure 2 seem to be in training mode: the T5 line fits better with dropout."
    )
    correct = "Trained and random networks have to be compared in evaluation mode, without dropout."
    published: float = number("published mean of the random T5")
    evaluation: float = number("mean without dropout")
    training: float = number("mean with dropout")
    without: float = number("mean distance from the published line, without dropout")
    dropout: float = number("mean distance from the published line, with dropout")

    @classmethod
    def measure(cls, evidence: Evidence) -> Self:
        line, known = published_line("t5-base"), evidence.figure2_forms
        evaluation, training = known[forms.START], known[forms.AS_PUBLISHED]
        means = line.mean(), evaluation.mean(), training.mean()
        return cls(*means, distance(evaluation, line), distance(training, line))

    def differs(self) -> bool:
        return self.dropout < self.without


DEPARTURES: dict[str, type[Discrepancy]] = {
    one.id: one
    for one in (
        *(CausalMask, Padding, Perplexity, LayerAlignment, NormScope, LanguageModelNorm),
        *(LearningRate, GridEncoder, BiasSwitch),
        *(DecoderLine, MemoryLine, TrainingMode),
    )
}
