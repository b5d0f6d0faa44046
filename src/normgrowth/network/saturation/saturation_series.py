"""The saturation of every checkpoint of a series, together with its trace: `saturation(series, config=...)`.

Levels of a step depend only on its checkpoint, the architecture, the options and the text. They are stored in one file
per step with a key made of these, so that an interrupted run resumes.

    DIR/levels/step-000000500.parquet     levels of one step
    DIR/records.parquet, records.json     trace and levels together
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from normgrowth.checkpoints.parameters.selection import Selection
from normgrowth.checkpoints.series import Entry
from normgrowth.engine import Progress
from normgrowth.errors import InputError, SchemaError
from normgrowth.lint.judge import judge_samples
from normgrowth.network.inputs.batches import read_rows
from normgrowth.network.measured import ModelInfo, TextInfo
from normgrowth.network.models.load import LoadedModel, load_model
from normgrowth.network.saturation.checkpoint_loader import Filler, weights_kept
from normgrowth.network.saturation.result import LevelOptions, Saturation
from normgrowth.network.saturation.state_comparison import measure_saturation
from normgrowth.records import Records, concatenated
from normgrowth.results import Provenance
from normgrowth.serialization.checksums import TABLE
from normgrowth.serialization.json_types import parse_json
from normgrowth.serialization.record_schema import conformed
from normgrowth.trace.output.store import KEY, step_name
from normgrowth.trace.request import Tracing
from normgrowth.trace.stream import Reader
from normgrowth.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

ABOUT = b"measured_with"
LEVELS_VERSION = 2  # increase it when the same checkpoint would get different levels


@dataclass(frozen=True)
class LevelsInfo:
    """Model and text that the levels of a step were measured with; stored with them.

    token_ids: "tokenizer", "order of appearance" or "given", see `TextInfo.tokenized`.
    """

    text: str
    token_ids: str
    unknown_share: float | None
    architecture: str
    dtype: str
    notes: list[str]

    def model(self, name: str, levels: "pa.Table") -> ModelInfo:
        rows = Records(levels).where(level="model").to_rows()
        sizes = {
            row["quantity"]: int(row["value"]) for row in rows if row["quantity"].startswith("evaluation_")
        }
        tokenized = {"tokenizer": True, "order of appearance": False}.get(self.token_ids)
        counts = sizes.get("evaluation_sentences"), sizes.get("evaluation_tokens")
        return ModelInfo(
            name,
            self.architecture,
            self.dtype,
            text=TextInfo(self.text, tokenized, self.unknown_share, *counts),
        )


Levels: TypeAlias = "tuple[pa.Table, LevelsInfo]"  # levels of one step


def of_series(
    source: str | Path | Sequence[str | Path],
    config: "nn.Module | LoadedModel",
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
    loaded = config if isinstance(config, LoadedModel) else load_model(config)
    model, texts, inputs = loaded.model, _held(texts), _held(inputs)
    options = replace(options, tokenizer=options.tokenizer or loaded.tokenizer)
    c, fixed = list(options.c), list(options.fixed)
    asked = [LEVELS_VERSION, _architecture(model), c, options.exact, *([fixed] if fixed else [])]
    asked += ["hard_attention"] if options.hard_attention else []
    asked += [options.stack, options.decoder_input] if options.stack == "decoder" else []
    tokens = inputs
    if inputs is None:  # the token ids of a text also depend on the tokenizer
        tokens = [str(row) for row in read_rows(model, texts, options.tokenizer, options.sentences).rows]
    text = _content(tokens)
    asked.append(text)
    source = source if isinstance(source, str | Path) else list(source)
    tracing = Tracing(source, Selection(include), run=run, judge=judge_samples, endpoint=endpoint)
    request = {
        "scales": c,
        "exact": options.exact,
        "hard_attention": options.hard_attention or None,
        "fixed": fixed or None,
        "stack": options.stack,
        "text": f"{_counted(tokens)} (sha256 {text[:12]})",
        "model": _named(model),
    }
    steps: dict[int, Levels] = {}
    problems: list[str] = []
    filler = Filler(model, options.states, options.stack)
    with Workspace.open(out, "saturation", overwrite=overwrite) as workspace, weights_kept(model):
        cache = workspace.cache("levels", TABLE)
        traced, places = tracing.into(workspace, Reader(), **request)
        name = traced.run
        for number, place in enumerate(places):
            if progress:
                progress(number, len(places), place.label)
            entry, known = place.entry, place.entry or place.stored
            key = hashlib.sha256(json.dumps([*asked, known and known.fingerprint]).encode()).hexdigest()
            # A user's `states` function has no key, so its levels cannot be stored.
            stored = cache.get(step_name(place.step)) if options.states is None else None
            found = _from_table(key, stored, Path(step_name(place.step)))
            if found is None and entry is None:
                problems.append(f"{place.label}: no longer exists, and its levels were not measured before")
                continue
            if found is None:
                assert entry is not None
                _fill(filler, entry)
                if (bad := _not_finite(model)) is not None:
                    problems.append(
                        f"{entry.label}: {bad} contains NaN or infinity, so this step has no levels"
                    )
                    continue
                levels = measure_saturation(LoadedModel(entry.label, model), texts, inputs, options)
                found = _at_step(levels, entry.step)
                cache.put(step_name(entry.step), _to_table(key, found))
            steps[place.step] = found
        if progress:
            progress(len(places), len(places), name)
        if not steps:
            raise InputError(problems[-1] if problems else f"{source}: no checkpoint has levels")
        table, last = steps[max(steps)]
        said = dict.fromkeys(note for _, info in steps.values() for note in info.notes)
        result = Saturation(
            records=_joined(traced.records, name, [table for table, _ in steps.values()]),
            source=traced.source,
            models={name: last.model(name, table)},
            c=options.c,
            exact=options.exact,
            hard_attention=options.hard_attention,
            stack=options.stack,
            fixed=options.fixed,
            config=loaded.source,
            steps=tuple(sorted(steps)),
            selection=traced.selection,
            counted=traced.counted,
            findings=traced.findings,
            notes=(*traced.notes, *filler.notes, *said),
            problems=(*traced.problems, *problems),
            provenance=Provenance.now(),
        )
        workspace.save(result)
    traced.warn(stacklevel=3)
    return result


def _fill(filler: Filler, entry: Entry) -> None:
    checkpoint = entry.open()
    try:
        filler.fill(checkpoint)
    finally:
        checkpoint.close()


def _not_finite(model: nn.Module) -> str | None:
    return next((name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())), None)


def _held(given: Any) -> Any:
    """An iterator as a list, because every checkpoint reads the text again."""
    once = isinstance(given, Iterable) and not isinstance(given, str | Mapping | Tensor)
    return list(given) if once else given


# --- stored levels of a step ---------------------------------------------------------------------------------
def _architecture(model: nn.Module) -> str:
    config: Any = getattr(model, "config", None)
    said = config.to_json_string() if hasattr(config, "to_json_string") else repr(model)
    return f"{type(model).__name__} {next(model.parameters()).dtype} {said}"


def _named(model: nn.Module) -> str:
    """A short description of the architecture for messages."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    digest = hashlib.sha256(_architecture(model).encode()).hexdigest()
    return f"{type(model).__name__} in {dtype} (sha256 {digest[:12]})"


def _counted(tokens: Any) -> str:
    several = tokens if isinstance(tokens, list) else [tokens]
    what = "sentence" if all(isinstance(one, str) for one in several) else "batch"
    return (
        f"1 {what}"
        if len(several) == 1
        else f"{len(several)} {'sentences' if what == 'sentence' else 'batches'}"
    )


def _content(given: Any) -> str:
    """A hash of the content of the text or of the batches."""
    digest = hashlib.sha256()
    for part in given if isinstance(given, list) else [given]:
        for name, value in part.items() if isinstance(part, Mapping) else [("", part)]:
            said = value.cpu().numpy().tobytes() if isinstance(value, Tensor) else str(value).encode()
            digest.update(f"{name}:{len(said)}:".encode() + said)
    return digest.hexdigest()


def _at_step(levels: Saturation, step: int) -> Levels:
    import pyarrow as pa

    table = levels.records.table
    steps = pa.array([step] * len(table), table.schema.field("step").type)
    table = table.set_column(table.schema.get_field_index("step"), "step", steps)
    (known,) = levels.models.values()
    ids = {True: "tokenizer", False: "order of appearance", None: "given"}[known.text.tokenized]
    text, share = known.text.source, known.text.unknown_share
    return table, LevelsInfo(text, ids, share, known.architecture, known.dtype, list(levels.notes))


def _to_table(key: str, levels: Levels) -> "pa.Table":
    table, info = levels
    return table.replace_schema_metadata({KEY: key.encode(), ABOUT: json.dumps(asdict(info)).encode()})


def _from_table(key: str, table: "pa.Table | None", path: Path) -> "Levels | None":
    """The stored levels if they have this key; None if they are missing or damaged."""
    said = (table.schema.metadata if table is not None else None) or {}
    if table is None or said.get(KEY) != key.encode():
        return None
    try:
        return conformed(table, path), parse_json(said.get(ABOUT, b""), LevelsInfo, path)
    except SchemaError:
        return None


def _joined(traced: Records, run: str, levels: "Sequence[pa.Table]") -> Records:
    import pyarrow as pa

    tables = [traced.table]
    for table in levels:
        kind = traced.table.schema.field("run").type
        runs = pa.array([run] * len(table)).cast(kind)
        tables.append(table.set_column(table.schema.get_field_index("run"), "run", runs))
    return Records(concatenated(tables))
