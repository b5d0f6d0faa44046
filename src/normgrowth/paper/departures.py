"""Where the authors' code departs from their text, each with both sides measured: theirs, and what the text says.

Theirs is measured here where a model can be trained their way, and otherwise taken from what they published: T5's
numbers, and the plots of their language models (`lm_runs`). What they print, or their code does, is `printed`.
"""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.paper.claim import Evidence
from normgrowth.paper.claims.saturation_curves import apart_by_biases
from normgrowth.paper.claims.trained_models import trained
from normgrowth.paper.erratum import Erratum
from normgrowth.paper.published.tables import published

Floats = NDArray[np.float64]
T5_LAYER = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 768  # parameters of an encoder layer of T5-base
PTB_FREQUENCIES = 6.532  # nats per token of word frequencies, on the development part
FULL = 0.98  # a level of saturation that is printed as 1.00, as in the claim


def lm_run(run: str, metric: str, data: str = "penn") -> Floats:
    """Of one of the authors' language models: before training, and after each epoch."""
    table = published("lm_runs")
    rows = (table["data"] == data) & (table["run"] == run) & (table["metric"] == metric)
    return table["value"][rows]


def _mask(evidence: Evidence) -> dict[str, float]:
    leaking = list(trained(evidence, leaking=True))
    losses = []
    for one in leaking:
        facts = {**one.facts, "leaking": False}
        (twin,) = trained(evidence, **facts)
        losses.append((twin.ends("dev_loss")[1], one.ends("dev_loss")[1]))
    true, theirs = min(losses, key=lambda pair: pair[1])
    return {"dev loss, true mask": true, "dev loss, their mask": theirs}


def _padding(evidence: Evidence) -> dict[str, float]:
    model = next(trained(evidence, leaking=True))
    real, window = model.heads("attended"), model.heads("attended_window")
    return {
        "positions attended, of real tokens": float(real.mean()),
        "with padding counted": float(window.mean()),
    }


def _perplexity(evidence: Evidence) -> dict[str, float]:
    model = next(trained(evidence, leaking=False, optimizer="adamw"))
    if "perplexity_authors" not in evidence["language_models"].distinct("quantity"):
        raise InputError("the records do not tell the losses of sentences")
    return {
        "exp of the mean loss per token": model.ends("perplexity")[1],
        "mean over sentences of 2^loss": model.ends("perplexity_authors")[1],
    }


def their_alignment(dot: Floats, before: Floats, after: Floats, numel: int) -> Floats:
    """At most: ⟨θ,δ⟩ over ‖θ‖ and over the norm of θ′ − ‖θ‖, where ‖θ‖ is taken from each of the values of θ′.

    That norm is √n·‖θ‖ − ‖θ′‖ at least, whatever the values are.
    """
    return np.abs(dot) / (before * (sqrt(numel) * before - after))


def _layer_alignment(evidence: Evidence) -> dict[str, float]:
    del evidence
    norms, steps = published("t5_norm_by_layer"), published("t5_steps_by_layer")
    true, theirs = [], []
    for number in np.unique(norms["layer"]).tolist():
        norm, own = norms.layer(number)["norm"], steps.layer(number)
        true.append(np.abs(own["alignment"]).max())
        theirs.append(their_alignment(own["growth_alignment"] / 2, norm[:-1], norm[1:], T5_LAYER).max())
    return {
        "T5's layers: largest alignment": float(max(true)),
        "by their formula, at most": float(max(theirs)),
    }


def _norm_scope(evidence: Evidence) -> dict[str, float]:
    del evidence
    layers = published("t5_norm_by_layer")
    encoder = layers["norm"][layers["step"] == 0]
    return {
        "norm of T5 at step 0, Figure 1": float(published("t5_norm")["norm"][0]),
        "of its 12 encoder layers together": float(np.linalg.norm(encoder)),
    }


def initial_norms(
    vocabulary: int, positions: int, layers: int = 12, width: int = 768, feedforward: int = 512
) -> tuple[float, float]:
    """Expected of the blocks, and of all parameters, as PyTorch initialises a language model of this shape.

    Linear maps are uniform in ±1/√inputs, weights and biases alike; gains are 1, embeddings normal.
    """

    def linear(inputs: int, outputs: int) -> float:
        return (inputs + 1) * outputs / (3 * inputs)

    block = 4 * linear(width, width) + linear(width, feedforward) + linear(feedforward, width) + 2 * width
    rest = (vocabulary + positions) * width + linear(width, vocabulary)
    return sqrt(layers * block), sqrt(layers * block + rest)


def _lm_norm(evidence: Evidence) -> dict[str, float]:
    del evidence
    blocks, everything = initial_norms(vocabulary=10_000, positions=83)
    return {
        "norm of the blocks, at initialisation": blocks,
        "of all parameters, embeddings too": everything,
        "their plots with SGD begin at": float(lm_run("pre_norm-sgd-constant_lr", "norm")[0]),
        "their plots with AdamW begin at": float(lm_run("pre_norm", "norm")[0]),
    }


def _post_norm(evidence: Evidence) -> dict[str, float]:
    corpora = evidence["language_models"].made_by.get("corpora")
    if not corpora:
        raise InputError("the records do not tell the loss of word frequencies")
    below = [
        corpora[model.facts["corpus"]]["frequency_loss"] - model.ends("dev_loss")[1]
        for model in trained(evidence, kind="post_norm", optimizer="adamw", leaking=False)
    ]
    return {
        "their dev loss on PTB, best of 5 epochs": float(lm_run("control", "loss").min()),
        "word frequencies on PTB": PTB_FREQUENCIES,
        "post-norm here: below word frequencies by": min(below),
    }


def _sgd(evidence: Evidence) -> dict[str, float]:
    theirs = lm_run("pre_norm-sgd-constant_lr", "saturation")
    level = {
        optimizer: min(
            model.ends("saturation")[1]
            for model in trained(evidence, kind="paper_pre_norm", optimizer=optimizer, leaking=False)
        )
        for optimizer in ("sgd", "adamw")
    }
    return {
        "their SGD, after 1 epoch": float(theirs[1]),
        "after 20": float(theirs[-1]),
        "SGD here": level["sgd"],
        "AdamW here": level["adamw"],
    }


def _decay(evidence: Evidence) -> dict[str, float]:
    """A step of PyTorch's AdamW, with its defaults and no gradient: what it takes of a weight."""
    del evidence
    import torch

    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    return {
        "share of θ taken by a step, eq. (3)": float(optimizer.defaults["weight_decay"]),
        "by PyTorch's AdamW": 1 - weight.item(),
    }


def _bias_switch(evidence: Evidence) -> dict[str, float]:
    table = published("scaling_curves")
    lines = [table["cosine_to_saturated"][table["bias"] == bias] for bias in ("bias", "no-bias")]
    return {
        "published lines with and without biases differ by": float(np.abs(lines[0] - lines[1]).max()),
        "the same weights with and without biases by": apart_by_biases(evidence),
    }


DEPARTURES = [
    Erratum(
        id="mask",
        kind="departure",
        where="code of the language models",
        printed="The causal mask multiplies scores by 0.",
        true="They must be −∞: a score of 0 is seen, and the next word with it.",
        stages=("language_models",),
        measure=_mask,
        fails=lambda n: n["dev loss, their mask"] < n["dev loss, true mask"] - 0.1,
    ),
    Erratum(
        id="padding",
        kind="departure",
        where="code of Figure 3",
        printed="Attended positions are counted with padding, which asks and is asked.",
        true="Padding is no position.",
        stages=("language_models",),
        measure=_padding,
        fails=lambda n: abs(n["with padding counted"] / n["positions attended, of real tokens"] - 1) > 0.1,
    ),
    Erratum(
        id="perplexity",
        kind="departure",
        where="code of the language models",
        printed="Perplexity is the mean over sentences of 2 to the loss in nats.",
        true="It is exp of the mean loss per token: 2 goes with bits, and a mean over sentences is another mean.",
        stages=("language_models",),
        measure=_perplexity,
        fails=lambda n: (
            abs(n["mean over sentences of 2^loss"] / n["exp of the mean loss per token"] - 1) > 0.01
        ),
    ),
    Erratum(
        id="layer-alignment",
        kind="departure",
        where="code of T5's alignment by layer",
        printed="The alignment of a layer is divided by ‖θ′ − ‖θ‖‖, where a norm is taken from a vector.",
        true="cos(δ, θ) = ⟨δ,θ⟩/(‖δ‖‖θ‖). Theirs is near 0 for any step.",
        stages=(),
        measure=_layer_alignment,
        fails=lambda n: n["by their formula, at most"] < 0.1 * n["T5's layers: largest alignment"],
    ),
    Erratum(
        id="norm-scope",
        kind="departure",
        where="§A, Figure 1",
        printed="All norms are of encoder parameters only.",
        true="The total of Figure 1 has the decoder too; its lines by layer are the encoder's.",
        stages=(),
        measure=_norm_scope,
        fails=lambda n: n["norm of T5 at step 0, Figure 1"] > 1.05 * n["of its 12 encoder layers together"],
    ),
    Erratum(
        id="lm-norm",
        kind="departure",
        where="§A, code of the language models",
        printed="All norms are of encoder parameters; embeddings are better left out.",
        true="Its plots have the norm of all parameters, or the mean norm of the columns of linear maps.",
        stages=(),
        measure=_lm_norm,
        fails=lambda n: all(
            abs(n[f"their plots with {optimizer} begin at"] / n["norm of the blocks, at initialisation"] - 1)
            > 0.05
            for optimizer in ("SGD", "AdamW")
        ),
    ),
    Erratum(
        id="post-norm",
        kind="departure",
        where="runs of the language models",
        printed="Post-norm models were trained, and saturate.",
        true="They learned word frequencies and no more; with a warm-up post-norm learns.",
        stages=("language_models",),
        measure=_post_norm,
        fails=lambda n: (
            n["their dev loss on PTB, best of 5 epochs"] > n["word frequencies on PTB"] - 0.1
            and n["post-norm here: below word frequencies by"] > 0.1
        ),
    ),
    Erratum(
        id="sgd",
        kind="departure",
        where="§4.1, runs with plain SGD",
        printed="Small transformers reach a saturation of 1.00; the runs with SGD are not told of.",
        true="With SGD they do not: the level depends on the optimizer.",
        stages=("language_models",),
        measure=_sgd,
        fails=lambda n: min(n["after 20"], n["SGD here"]) < FULL,
    ),
    Erratum(
        id="decay",
        kind="departure",
        where="§5.6, §F, eq. (3)",
        printed="Weight decay takes λθ in each step.",
        true="PyTorch's AdamW, which Figure 6 is made with, takes ηλθ: its threshold of λ moves with η.",
        stages=(),
        measure=_decay,
        fails=lambda n: abs(n["by PyTorch's AdamW"] / n["share of θ taken by a step, eq. (3)"] - 1) > 0.01,
    ),
    Erratum(
        id="bias-switch",
        kind="departure",
        where="code of Figure 4",
        printed="Two lines of a pair are of encoders with and without biases.",
        true="The switch reaches the classifier only: they differ by their random weights, and more than biases do.",
        stages=("scaling",),
        measure=_bias_switch,
        fails=lambda n: (
            n["published lines with and without biases differ by"]
            > 1.2 * n["the same weights with and without biases by"]
        ),
    ),
]
