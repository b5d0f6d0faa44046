"""The saturation of every checkpoint of a series, together with its trace: `saturation(series, config=...)`.

Levels of a step depend only on its checkpoint, the architecture, the options and the text. They are stored in one file
per step with a key made of these, so that an interrupted run resumes.

    DIR/levels/step-000000500.parquet     levels of one step
    DIR/records.parquet, records.json     trace and levels together
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.engine import Progress
from normgrowth.errors import InputError, SchemaError
from normgrowth.lint.judge import judge_samples
from normgrowth.network.inputs.tokenized_text import read_rows
from normgrowth.network.measured import ModelInfo, each_batch, held_text
from normgrowth.network.models.load import LoadedModel, load_model, nonfinite_parameter
from normgrowth.network.saturation.checkpoint_loader import Filler, weights_kept
from normgrowth.network.saturation.level_options import LevelOptions
from normgrowth.network.saturation.result import Saturation
from normgrowth.network.saturation.state_comparison import measure_saturation
from normgrowth.records import Records
from normgrowth.results import Provenance
from normgrowth.serialization.checksums import TABLE, digest
from normgrowth.serialization.json_types import parse_json
from normgrowth.serialization.record_schema import conformed
from normgrowth.trace.output.store import KEY, step_name
from normgrowth.trace.request import Tracing
from normgrowth.trace.stream import Reader
from normgrowth.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

ABOUT = b"measured_with"
LEVELS_VERSION = 3  # increase it when the same checkpoint would get, or store, different levels

# The options that determine the levels of a checkpoint.
MEASURED = ("c", "exact", "hard_attention", "fixed", "stack", "decoder_input")


@dataclass(frozen=True)
class MeasuredWith:
    """Model and text that the levels of a step were measured with; stored with them."""

    model: ModelInfo
    notes: tuple[str, ...]


Levels: TypeAlias = tuple[Records, MeasuredWith]  # levels of one step


def of_series(
    model: Any,
    config: "str | Path | nn.Module | LoadedModel",
    texts: Any,
    inputs: Any,
    options: LevelOptions,
    *,
    include: str,
    endpoint: str | None,
    run: str | None,
    out: str | Path | None,
    overwrite: bool,
    progress: Progress | None,
) -> Saturation:
    """The trace of a series, with the saturation levels at each step. See `saturation`."""
    if options.random_init or options.as_published:
        raise InputError("random_init and as_published are for models, not for a series")
    several = list(model) if isinstance(model, list | tuple) else [model]
    source = several if len(several) > 1 else several[0]
    loaded = config if isinstance(config, LoadedModel) else load_model(config, **options.load)
    model, texts, inputs = loaded.model, held_text(texts), each_batch(inputs)
    options = replace(options, tokenizer=options.tokenizer or loaded.tokenizer)
    tokens = inputs
    if inputs is None:  # the token ids of a text also depend on the tokenizer
        tokens = [str(row) for row in read_rows(model, texts, options.tokenizer, options.sentences).rows]
    text = _content(tokens)
    levels = {name: value for name, value in options.request().items() if name in MEASURED}
    asked = [LEVELS_VERSION, _architecture(model), levels, text]
    tracing = Tracing(source, Selection(include), run=run, judge=judge_samples, endpoint=endpoint)
    request: dict[str, Any] = {
        **levels,
        "text": f"{_counted(tokens)} (sha256 {text[:12]})",
        "model": _named(model),
    }
    steps: dict[int, Levels] = {}
    problems: list[str] = []
    filler = Filler(model, options.states, options.stack)
    with Workspace.open(out, "saturation", overwrite=overwrite) as workspace, weights_kept(model):
        cache = workspace.cache("levels", TABLE)
        traced, places = tracing.into(workspace, Reader(), **request)
        for number, place in enumerate(places):
            if progress:
                progress(number, len(places), place.label)
            entry, known = place.entry, place.entry or place.stored
            key = digest([*asked, known and known.fingerprint])
            # A user's `states` function has no key, so its levels cannot be stored.
            stored = cache.get(step_name(place.step)) if options.states is None else None
            found = _from_table(key, stored, traced.run, Path(step_name(place.step)))
            if found is None and entry is None:
                problems.append(f"{place.label}: no longer exists, and its levels were not measured before")
                continue
            if found is None:
                assert entry is not None
                with closing(entry.open()) as checkpoint:
                    filler.fill(checkpoint)
                if (bad := nonfinite_parameter(model)) is not None:
                    problems.append(
                        f"{entry.label}: {bad} contains NaN or infinity, so this step has no levels"
                    )
                    continue
                filled = LoadedModel(entry.label, model, options.tokenizer, step=entry.step)
                measured = measure_saturation(filled, traced.run, texts, inputs, options, None)
                (about,) = measured.models.values()
                found = measured.records, MeasuredWith(about, measured.notes)
                cache.put(step_name(entry.step), _to_table(key, *found))
            steps[place.step] = found
        if progress:
            progress(len(places), len(places), traced.run)
        if not steps:
            raise InputError(problems[-1] if problems else f"{source}: no checkpoint has levels")
        _, last = steps[max(steps)]
        said = dict.fromkeys(note for _, about in steps.values() for note in about.notes)
        result = Saturation(
            records=Records.joined([traced.records, *(records for records, _ in steps.values())]),
            source=traced.source,
            models={traced.run: replace(last.model, name=traced.run)},
            config=loaded.source,
            steps=tuple(sorted(steps)),
            selection=traced.selection,
            counted=traced.counted,
            findings=traced.findings,
            notes=(*traced.notes, *filler.notes, *said),
            problems=(*traced.problems, *problems),
            provenance=Provenance.now(),
            **options.shared_with(Saturation),
        )
        workspace.save(result)
    traced.warn(stacklevel=3)
    return result


# --- stored levels of a step ---------------------------------------------------------------------------------
def _architecture(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    said = config.to_json_string() if hasattr(config, "to_json_string") else repr(model)
    return f"{type(model).__name__} {next(model.parameters()).dtype} {said}"


def _named(model: nn.Module) -> str:
    """A short description of the architecture for messages."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"{type(model).__name__} in {dtype} (sha256 {digest(_architecture(model))[:12]})"


def _counted(tokens: list[Any]) -> str:
    """The number of sentences, which are strings, or of batches."""
    one, several = ("sentence", "sentences") if isinstance(tokens[0], str) else ("batch", "batches")
    return f"{len(tokens)} {one if len(tokens) == 1 else several}"


def _content(given: list[Any]) -> str:
    """A hash of the content of the text or of the batches."""
    found = hashlib.sha256()
    for part in given:
        for name, value in part.items() if isinstance(part, Mapping) else [("", part)]:
            said = value.cpu().numpy().tobytes() if isinstance(value, Tensor) else str(value).encode()
            found.update(f"{name}:{len(said)}:".encode() + said)
    return found.hexdigest()


def _to_table(key: str, records: Records, about: MeasuredWith) -> "pa.Table":
    return records.table.replace_schema_metadata(
        {KEY: key.encode(), ABOUT: json.dumps(asdict(about)).encode()}
    )


def _from_table(key: str, table: "pa.Table | None", run: str, path: Path) -> Levels | None:
    """The stored levels if they have this key; None if they are missing or damaged."""
    said = (table.schema.metadata if table is not None else None) or {}
    if table is None or said.get(KEY) != key.encode():
        return None
    try:
        records = Records(conformed(table, path)).with_run(run)
        return records, parse_json(said.get(ABOUT, b""), MeasuredWith, path)
    except SchemaError:
        return None
