"""The passes of `scaling`: comparison of a network at each c with its exact limit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normgrowth.engine import Progress
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
from normgrowth.network.inputs.default_inputs import Texts, default_inputs
from normgrowth.network.models.encoders import Encoder, EncoderConfig, Kind
from normgrowth.network.models.load import LoadedModel, as_loaded, check_weights, load_model
from normgrowth.network.overflow import OverflowAsNan
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.network.scaling.convergence import local_powers, rate
from normgrowth.network.scaling.result import ScaledNetwork, Scaling, joined_scalings
from normgrowth.records import Block, Records

Floats = NDArray[np.float64]
Inputs = Tensor | Mapping[str, Tensor]

SCALES = tuple(float(c) for c in np.geomspace(1, 1e4, 49))  # twelve per decade
SEEDS = (0, 1, 2)
SENTENCES = TOKENS = WORDS = 10  # as in the authors' Figure 4: random ids, all sentences of one length


def of_config(
    config: EncoderConfig,
    inputs: Inputs | None,
    scales: Floats,
    seeds: Sequence[int],
    run: str,
    *,
    fixed: Sequence[str] = (),
    progress: Progress | None = None,
) -> Scaling:
    """The curves of encoders with random weights, one per seed."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds must be distinct and at least one, got {list(seeds)}")
    parts = []
    for number, seed in enumerate(seeds):
        tell = _shifted(progress, number, len(seeds), f"{run}, seed {seed}")
        known = ScaledNetwork(run, seed, config.kind, config.bias, config=asdict(config))
        ids = random_ids(config, seed) if inputs is None else inputs
        network = Network(built := encoder(config, seed), _encoder_states)
        parts.append(_curve(network, _named(ids), scales, fixed_within(built, network, fixed), known, tell))
    given = "random ids" if inputs is None else "given"
    return _result(parts, source=run, input=given, fixed=tuple(fixed))


def of_paper(
    layers: int,
    width: int,
    inputs: Inputs | None,
    scales: Floats,
    seeds: Sequence[int],
    progress: Progress | None = None,
) -> Scaling:
    """The curves of the paper's encoder and its two variants, without and with biases."""
    configs, parts = paper_configs(layers, width), []
    for number, config in enumerate(configs):

        def tell(done: int, total: int, label: str, number: int = number) -> None:
            if progress is not None:
                progress(number * total + done, len(configs) * total, label)

        parts.append(of_config(config, inputs, scales, seeds, label_of(config), progress=tell))
    networks = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    source = f"the paper's encoder and its variants: {layers} layers of width {width}, {networks}"
    note = "random weights and ids; for one seed, weights are the same with and without biases"
    return joined_scalings(parts, source=source, notes=(note,))


def of_module(
    model: "nn.Module | LoadedModel",
    inputs: Inputs | None,
    texts: Texts | None,
    scales: Floats,
    run: str | None,
    *,
    seed: int | None = None,
    fixed: Sequence[str] = (),
    states: States | None = None,
    progress: Progress | None = None,
) -> Scaling:
    """The curve of a module."""
    loaded = as_loaded(model)
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
    curve = _curve(network, batch, scales, held, ScaledNetwork(run, seed), _shifted(progress, 0, 1, run))
    facts = {"input": said, "unknown_share": unknown, "fixed": tuple(fixed), "notes": tuple(notes)}
    return _result([curve], source=run, **facts)


def of_name(
    source: str,
    inputs: Inputs | None,
    texts: Texts | None,
    scales: Floats,
    seeds: Sequence[int] | None,
    run: str | None,
    *,
    load: Mapping[str, Any],
    fixed: Sequence[str] = (),
    states: States | None = None,
    progress: Progress | None = None,
) -> Scaling:
    """The curve of a model by name; for a config alone, one curve per seed."""
    parts = []
    for seed in (0,) if seeds is None else seeds:
        loaded = load_model(source, seed=seed, **load)
        if seeds is not None and not loaded.random:
            raise InputError(f"{source}: seeds are for random weights, but this model has trained weights")
        own = seed if loaded.random else None
        options = {"fixed": fixed, "states": states, "progress": progress}
        parts.append(of_module(loaded, inputs, texts, scales, run, seed=own, **options))
    return joined_scalings(parts)


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


def _result(parts: Sequence[tuple[ScaledNetwork, list[Block]]], **fields: Any) -> Scaling:
    tables = [Records.from_blocks(network.run, blocks) for network, blocks in parts]
    return Scaling(records=Records.joined(tables), networks=tuple(one for one, _ in parts), **fields)


def _curve(
    network: Network,
    batch: Any,
    scales: Floats,
    fixed: Sequence[str],
    known: ScaledNetwork,
    tell: Callable[[float], None],
) -> tuple[ScaledNetwork, list[Block]]:
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
            with scaled_weights(network, float(c), fixed=fixed), OverflowAsNan() as scaled_pass:
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
        Block("model", ["model"], [None], [None], points, last, **axes),
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


def _shifted(progress: Progress | None, number: int, count: int, label: str) -> Callable[[float], None]:
    """A progress function for one of several curves, in thousandths of the total."""

    def tell(part: float) -> None:
        if progress is not None:
            progress(round(1000 * (number + part) / count), 1000, label)

    return tell
