"""`scaling`: how a network turns into its saturated self as its weights grow (section 5.2, Figure 4).

With c times all weights, against the exact limit (`saturated`) of the same network, of degree k:

    cosine_saturated   mean over tokens of cos(f(x; cθ), limit)
    cosine_flattened   the same with all tokens as one vector, as in the paper's Figure 4; model only
    scaling_error      ‖f(x; cθ)/cᵏ − limit‖ / ‖limit‖ over all tokens: approximate homogeneity, corrected
    error_power        p where the error falls like c^(-p), from the scale before to this one
    scale              c; model only
    scaled_norm        ‖cθ‖, all parameters that grow; model only

In the records the step is the index of the scale, counted from 0, and the quantity `scale` says which c that is.
Level "layer" is the output of each block; "model" is the last state. Each network, that is each seed, is a run of
its own; `made_by["runs"]` says of each its group (the same network but for the seed), degree and rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import isnan
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normgrowth.errors import InputError
from normgrowth.limit.parameters import fixed_within, growing_parameters
from normgrowth.limit.saturated import saturated
from normgrowth.network.convergence import local_powers, rate
from normgrowth.network.hidden_states import (
    Network,
    States,
    check_weights,
    evaluating,
    measured_part,
    names_of_network,
    out_of_memory_hint,
    running,
)
from normgrowth.network.inputs.sentences import default_inputs
from normgrowth.network.models.encoders import Encoder, EncoderConfig, Kind
from normgrowth.network.models.load import Loaded
from normgrowth.network.overflow import OverflowAsNan
from normgrowth.network.scaled_weights import saturate
from normgrowth.records import Block, Records

Floats = NDArray[np.float64]
Progress = Callable[[int, int, str], None]  # passes done, of how many, of what
Inputs = Tensor | Mapping[str, Tensor]

SCALES = tuple(float(c) for c in np.geomspace(1, 1e4, 49))  # twelve a decade
SEEDS = (0, 1, 2)
SENTENCES = TOKENS = WORDS = 10  # of the authors' Figure 4: random ids, all of one length


def scaling(
    model_or_config: "EncoderConfig | nn.Module | Loaded",
    inputs: Inputs | None = None,
    *,
    scales: Sequence[float] = SCALES,
    seeds: Sequence[int] | None = None,
    fixed: Sequence[str] = (),
    states: States | None = None,
    run: str | None = None,
    progress: Progress | None = None,
) -> Records:
    """The curve of a network against c, as records (see the top of this file); the network is left as it was.

    An EncoderConfig is built in float64 with random weights, once for each of `seeds` (0, 1, 2). With and without
    biases, one seed gives the same weights otherwise. A module is run as it is, in its own dtype: the error cannot
    fall below its rounding.

    inputs: token ids, or tensors by name; where `attention_mask` is 0, states do not count. Without, random ids
    for a config, and sentences of the Python documentation for a model of transformers.
    fixed: parameters that do not grow, by name or pattern, as `saturated` takes them (`["*.A_log"]`).
    states: for other modules: a function of the module and the inputs that returns its states, each
    (rows, tokens, size), first the embeddings, then the output of every block.
    """
    grid = _checked(scales)
    if isinstance(model_or_config, EncoderConfig):
        config, seeds = model_or_config, SEEDS if seeds is None else seeds
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"seeds must be at least one, each once, not {list(seeds)}")
        label = run or label_of(config)
        parts = []
        for number, seed in enumerate(seeds):
            tell = _shifted(progress, number, len(seeds), f"{label}, seed {seed}")
            facts = {"group": label, "kind": config.kind, "bias": config.bias, "seed": seed}
            ids = random_ids(config, seed) if inputs is None else inputs
            network = Network(built := encoder(config, seed), _encoder_states)
            held = fixed_within(built, network, fixed)
            parts.append(_curve(network, _named(ids), grid, held, f"{label}, seed {seed}", facts, tell))
        given = "random ids" if inputs is None else "given"
        return joined(parts, {"input": given, "config": asdict(config), "fixed": list(fixed)})
    if seeds is not None:
        raise InputError("seeds are for an EncoderConfig: a module has its weights already")
    source = run or getattr(model_or_config, "source", type(model_or_config).__name__)
    note, model = "given", model_or_config
    if inputs is None and states is None:
        found = default_inputs(model)
        inputs, note = found.tensors, found.note
    model = model.model if isinstance(model, Loaded) else model
    if inputs is None:
        raise InputError(f"{source}: with states=, give the inputs too")
    check_weights(model)
    network = Network(measured_part(model, states), states)
    batch = _named(inputs) if states is None else inputs
    if network.network is not model:  # an encoder alone has no use for what the decoder takes
        batch = {name: tensor for name, tensor in _named(batch).items() if not name.startswith("decoder_")}
    tell = _shifted(progress, 0, 1, source)
    held = fixed_within(model, network, fixed)
    curve = _curve(network, batch, grid, held, source, {"group": source}, tell)
    return joined([curve], {"input": note, "fixed": list(fixed)})


def paper_configs(layers: int = 12, width: int = 768) -> list[EncoderConfig]:
    """The three encoders without and with biases, as the authors' Figure 4 has them where it has them."""
    heads = max((h for h in range(1, 13) if width > 0 and width % h == 0), default=1)
    shape = EncoderConfig(
        vocabulary=WORDS,
        max_length=TOKENS,
        layers=layers,
        width=width,
        heads=heads,
        feedforward=max(1, width * 2 // 3),
    )
    return [replace(shape, kind=kind, bias=bias) for kind in get_args(Kind) for bias in (False, True)]


def label_of(config: EncoderConfig) -> str:
    return f"{config.kind}, {'' if config.bias else 'no '}biases"


def encoder(config: EncoderConfig, seed: int) -> Encoder:
    """In float64. The weights of a seed are the same with and without biases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        full = Encoder(replace(config, bias=True)).double().eval()
    if config.bias:
        return full
    bare = Encoder(config).double().eval()
    bare.load_state_dict({name: full.state_dict()[name] for name in bare.state_dict()})
    return bare


def random_ids(config: EncoderConfig, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (SENTENCES, min(TOKENS, config.max_length))
    return torch.randint(config.vocabulary, shape, generator=generator)


def joined(parts: Sequence[Records], made_by: Mapping[str, Any] | None = None) -> Records:
    """Several curves in one table."""
    runs = {run: facts for part in parts for run, facts in part.made_by["runs"].items()}
    shared = parts[0].made_by if made_by is None else made_by
    return Records.joined(parts, {**shared, "command": "scaling", "runs": runs})


def _curve(
    network: Network,
    batch: Any,
    scales: Floats,
    fixed: Sequence[str],
    run: str,
    facts: dict[str, Any],
    tell: Callable[[float], None],
) -> Records:
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    real = mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None
    limit = saturated(network, fixed=fixed)
    tokens = 0 if real is None else real.numel()
    with evaluating(network), running(network, tokens):
        network(batch)
    with evaluating(network), out_of_memory_hint(network, tokens):
        with names_of_network():
            wanted = [_tokens(state, real) for state in limit(batch)[1:]]
        degrees = [float(degree or 0) for degree in limit.output_degrees[1:]]
        cosines = np.full((len(scales), len(wanted)), np.nan)
        errors, flat = cosines.copy(), np.full(len(scales), np.nan)
        unit = 0.0
        for i, c in enumerate(scales):
            tell(i / len(scales))
            with saturate(network, float(c), fixed=fixed), OverflowAsNan() as scaled_pass:
                found = network(batch)[1:]
            unit = max(unit, scaled_pass.rounding(found[-1]))
            for j, state in enumerate(found):
                own = _tokens(state, real)
                cosines[i, j] = torch.cosine_similarity(own, wanted[j], dim=-1).mean()
                errors[i, j] = (own / float(c) ** degrees[j] - wanted[j]).norm() / wanted[j].norm()
                flat[i] = torch.cosine_similarity(own.flatten(), wanted[j].flatten(), dim=0)
    tell(1.0)
    squares = sum(float(p.detach().double().square().sum()) for _, p in growing_parameters(network, fixed))
    norms = np.asarray(scales * np.sqrt(squares))
    powers = np.stack([local_powers(scales, errors[:, j]) for j in range(len(wanted))], axis=1)
    steps, layers = list(range(len(scales))), list(range(len(wanted)))
    both = {"cosine_saturated": cosines, "scaling_error": errors, "error_power": powers}
    last = {name: values[:, -1:] for name, values in both.items()}
    last |= {"cosine_flattened": flat[:, None], "scale": scales[:, None], "scaled_norm": norms[:, None]}
    blocks = [
        Block("layer", [f"layer.{i}" for i in layers], layers, [None] * len(layers), steps, both),
        Block("model", ["model"], [None], [None], steps, last),
    ]
    facts = facts | {"degree": degrees[-1], "rate": _plain(rate(scales, norms, errors[:, -1], unit))}
    facts |= {"norm": float(np.sqrt(squares)), "rounding": unit, "doubtful": limit.doubtful}
    lost = scales[~np.isfinite(errors[:, -1])]
    facts["overflow"] = float(lost[0]) if len(lost) else None  # the smallest c at which a norm overflows
    return Records.from_blocks(run, blocks, {"runs": {run: facts}})


def _plain(found: Any) -> dict[str, Any]:
    values = asdict(found) | {"sentence": found.sentence()}
    return {
        key: None if isinstance(value, float) and isnan(value) else value for key, value in values.items()
    }


def _tokens(state: Tensor, real: Tensor | None) -> Tensor:
    """(rows, tokens, size) -> (real tokens, size)"""
    return (state if real is None else state[real]).flatten(0, -2).double()


def _encoder_states(model: nn.Module, batch: Any) -> Sequence[Tensor]:
    return model(batch["input_ids"], batch.get("attention_mask"), return_states=True)


def _named(inputs: Any) -> Mapping[str, Tensor]:
    if isinstance(inputs, Tensor):
        return {"input_ids": inputs}
    if not isinstance(inputs, Mapping) or not inputs:
        raise InputError(f"inputs must be token ids or tensors by name, not {inputs!r}")
    return inputs


def _checked(scales: Sequence[float]) -> Floats:
    found = np.asarray(scales, np.float64)
    if found.ndim != 1 or len(found) < 2 or not (np.isfinite(found).all() and found[0] > 0):
        raise InputError("scales must be at least two finite numbers above 0")
    if not (np.diff(found) > 0).all():
        raise InputError("scales must grow from each to the next")
    return found


def _shifted(progress: Progress | None, number: int, count: int, label: str) -> Callable[[float], None]:
    """Progress of one curve among several, in thousandths of them all."""

    def tell(part: float) -> None:
        if progress is not None:
            progress(round(1000 * (number + part) / count), 1000, label)

    return tell
