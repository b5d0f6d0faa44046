"""The passes of `scaling`: comparison of a network at each c with its exact limit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normgrowth.engine import Progress, Steps
from normgrowth.errors import InputError
from normgrowth.limit.growing_parameters import fixed_within, growing_parameters
from normgrowth.limit.growing_parameters.fixed import note_on_fixed
from normgrowth.limit.saturated import saturated
from normgrowth.network.hidden_states import (
    Network,
    States,
    evaluating,
    measured_part,
    names_of_network,
    out_of_memory_hint,
    running,
)
from normgrowth.network.inputs.default_inputs import default_inputs
from normgrowth.network.inputs.tokenized_text import Texts
from normgrowth.network.models.encoders import Encoder, EncoderConfig, Kind
from normgrowth.network.models.load import LoadedModel, as_loaded, check_weights
from normgrowth.network.overflow import OverflowAsNan
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.network.scaling.convergence import local_powers, rate
from normgrowth.network.scaling.result import ScaledNetwork, Scaling, joined_scalings
from normgrowth.records import Block, Records
from normgrowth.results import Provenance

Floats = NDArray[np.float64]
Inputs = Tensor | Mapping[str, Tensor]

SCALES = tuple(float(c) for c in np.geomspace(1, 1e4, 49))  # twelve per decade
SEEDS = (0, 1, 2)
SENTENCES = TOKENS = WORDS = 10  # as in the authors' Figure 4: random ids, all sentences of one length


@dataclass(frozen=True)
class Subject:
    """A network whose weights are scaled, and its inputs. fixed: names of parameters that do not grow.

    input, unknown_share: a description of the inputs, and the share of unknown tokens; None: not text.
    """

    known: ScaledNetwork
    network: Network
    batch: Any
    fixed: Sequence[str]
    input: str
    unknown_share: float | None = None
    notes: tuple[str, ...] = ()


Subjects = list[Callable[[], Subject]]  # built one at a time, because a network can be large


def of_config(
    config: EncoderConfig,
    inputs: Inputs | None,
    seeds: Sequence[int] | None,
    run: str,
    fixed: Sequence[str] = (),
) -> Subjects:
    """Encoders with random weights, one per seed."""

    def built(seed: int) -> Subject:
        network = Network(model := encoder(config, seed), _encoder_states)
        known = ScaledNetwork(run, seed, config.kind, config.bias, config=asdict(config))
        ids, said = (random_ids(config, seed), "random ids") if inputs is None else (inputs, "given")
        return Subject(known, network, _named(ids), fixed_within(model, network, fixed), said)

    return [partial(built, seed) for seed in _distinct(SEEDS if seeds is None else seeds)]


def of_paper(layers: int, width: int, inputs: Inputs | None, seeds: Sequence[int] | None) -> Subjects:
    """The paper's encoder and its two variants, without and with biases."""
    configs = paper_configs(layers, width)
    return [one for config in configs for one in of_config(config, inputs, seeds, label_of(config))]


def described(layers: int, width: int, result: Scaling) -> Scaling:
    """The curves of `of_paper` with their description."""
    seeds = len({network.seed for network in result.networks})
    networks = f"{seeds} seed{'s' if seeds > 1 else ''}"
    source = f"the paper's encoder and its variants: {layers} layers of width {width}, {networks}"
    note = "random weights and ids; for one seed, weights are the same with and without biases"
    return replace(result, source=source, notes=(note,))


def of_model(
    model: "str | Path | nn.Module | LoadedModel",
    inputs: Inputs | None,
    texts: Texts | None,
    seeds: Sequence[int] | None,
    run: str | None,
    load: Mapping[str, Any],
    fixed: Sequence[str],
    states: States | None,
) -> Subjects:
    """A module, or a model by name; for a config alone, one network per seed."""

    def built(seed: int) -> Subject:
        loaded = as_loaded(model, {"seed": seed, **load})
        if seeds is not None and not loaded.random:
            raise InputError(f"{model}: seeds are for random weights, but this model has trained weights")
        return _subject(loaded, inputs, texts, run, seed if loaded.random else None, fixed, states)

    if seeds is not None and not isinstance(model, str | Path):
        raise InputError("seeds are for random weights: a module has its weights already")
    return [partial(built, seed) for seed in _distinct((0,) if seeds is None else seeds)]


def _subject(
    loaded: LoadedModel,
    inputs: Inputs | None,
    texts: Texts | None,
    run: str | None,
    seed: int | None,
    fixed: Sequence[str],
    states: States | None,
) -> Subject:
    run, notes = run or loaded.source, [*loaded.notes, *note_on_fixed(fixed)]
    said, unknown = "given", None
    if inputs is None and states is None:
        found = default_inputs(loaded, texts)
        inputs, said, unknown = found.tensors, found.note, found.unknown_share
        notes += [f"input: {said}", *([found.warning] if found.warning else [])]
    if inputs is None:
        raise InputError(f"{run}: states= also needs inputs=")
    check_weights(loaded.model)
    network = Network(measured_part(loaded.model, states), states)
    batch = _named(inputs) if states is None else inputs
    if network.network is not loaded.model:  # the encoder alone takes no decoder inputs
        batch = {name: tensor for name, tensor in _named(batch).items() if not name.startswith("decoder_")}
    held = fixed_within(loaded.model, network, fixed)
    return Subject(ScaledNetwork(run, seed), network, batch, held, said, unknown, tuple(notes))


def _distinct(seeds: Sequence[int]) -> Sequence[int]:
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds must be distinct and at least one, got {list(seeds)}")
    return seeds


def measure(subjects: Subjects, scales: Floats, fixed: Sequence[str], progress: Progress | None) -> Scaling:
    """The curves of all networks."""
    tell, parts = Steps(progress, len(subjects) * len(scales), ""), []
    for build in subjects:
        subject = build()
        seed = f", seed {subject.known.seed}" if subject.known.seed is not None else ""
        tell.label = f"{subject.known.run}{seed}"
        network, blocks = _curve(subject, scales, tell)
        part = Scaling(
            records=Records.from_blocks(network.run, blocks),
            networks=(network,),
            source=network.run,
            input=subject.input,
            unknown_share=subject.unknown_share,
            notes=subject.notes,
        )
        parts.append(part)
    return joined_scalings(parts, fixed=tuple(fixed), provenance=Provenance.now())


def paper_configs(layers: int = 12, width: int = 768) -> list[EncoderConfig]:
    """The three encoders without and with biases; those in the authors' Figure 4 have the same settings as there."""
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
    """An encoder in float64. For one seed, weights are the same with and without biases."""
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


def _curve(subject: Subject, scales: Floats, tell: Callable[[], None]) -> tuple[ScaledNetwork, list[Block]]:
    network, batch, fixed, known = subject.network, subject.batch, subject.fixed, subject.known
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
            with scaled_weights(network, float(c), fixed=fixed), OverflowAsNan() as scaled_pass:
                found = network(batch)[1:]
            unit = max(unit, scaled_pass.rounding(found[-1]))
            for j, state in enumerate(found):
                own = _tokens(state, real)
                cosines[i, j] = torch.cosine_similarity(own, wanted[j], dim=-1).mean()
                errors[i, j] = (own / float(c) ** degrees[j] - wanted[j]).norm() / wanted[j].norm()
                flat[i] = torch.cosine_similarity(own.flatten(), wanted[j].flatten(), dim=0)
            tell()
    squares = sum(float(p.detach().double().square().sum()) for _, p in growing_parameters(network, fixed))
    norms = np.asarray(scales * np.sqrt(squares))
    powers = np.stack([local_powers(scales, errors[:, j]) for j in range(len(wanted))], axis=1)
    both = {"cosine_saturated": cosines, "scaling_error": errors, "error_power": powers}
    last = {name: values[:, -1:] for name, values in both.items()}
    last |= {"cosine_flattened": flat[:, None], "scaled_norm": norms[:, None]}
    layers = range(len(wanted))
    axes = {"axis": "scale", "constants": {} if known.seed is None else {"seed": known.seed}}
    points = [float(c) for c in scales]
    blocks = [
        Block(
            "layer", [f"layer.{i}" for i in layers], list(layers), [None] * len(layers), points, both, **axes
        ),
        Block.of_model(points, last, **axes),
    ]
    lost = scales[~np.isfinite(errors[:, -1])]
    network_found = replace(
        known,
        degree=degrees[-1],
        rate=rate(scales, norms, errors[:, -1], unit),
        norm=float(np.sqrt(squares)),
        rounding=unit,
        undecided=limit.doubtful,
        overflow=float(lost[0]) if len(lost) else None,
    )
    return network_found, blocks


def _tokens(state: Tensor, real: Tensor | None) -> Tensor:
    """(rows, tokens, size) -> (real tokens, size)"""
    return (state if real is None else state[real]).flatten(0, -2).double()


def _encoder_states(model: nn.Module, batch: Any) -> Sequence[Tensor]:
    return model(batch["input_ids"], batch.get("attention_mask"), return_states=True)


def _named(inputs: Any) -> Mapping[str, Tensor]:
    if isinstance(inputs, Tensor):
        return {"input_ids": inputs}
    if not isinstance(inputs, Mapping) or not inputs:
        raise InputError(f"inputs must be token ids or a dict of tensors, got {type(inputs).__name__}")
    return inputs


def checked_scales(scales: Sequence[float]) -> Floats:
    found = np.asarray(scales, np.float64)
    if found.ndim != 1 or len(found) < 2 or not (np.isfinite(found).all() and found[0] > 0):
        raise InputError("c must have at least two values, all finite and above 0")
    if not (np.diff(found) > 0).all():
        raise InputError("c must be strictly ascending")
    return found
