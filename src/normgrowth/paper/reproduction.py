"""The result of a reproduction of the paper. It needs no torch, so the base install can load and show it.

reproduction = ng.reproduce(only=["norm-sqrt"])
reproduction["norm-sqrt"].verdict
ng.load("reproduction")          # from claims.json
"""

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np

from normgrowth.errors import InputError, SchemaError
from normgrowth.records import Block, Records
from normgrowth.results import CLAIMS, Result
from normgrowth.serialization.json_types import read_json
from normgrowth.serialization.record_schema import refuse_other_schemas
from normgrowth.stored_result import StoredResult
from normgrowth.text import one_line
from normgrowth.workspace import replacing

Verdict = Literal["holds", "holds in part", "does not hold", "not shown", "not measured here"]
T = TypeVar("T")
Numbers = dict[str, float | None]  # by label; None: not finite
ADVICE = "run `normgrowth reproduce` again"


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """A claim, what was measured here, and the verdict of its rule. needs: stages; figure: of the paper, if any.

    scope: what the verdict covers. data: what it is based on. would_change: which measurement would change it.
    options: other options of the command on which the numbers depend, such as ("--data", "corpora").
    """

    __repr__ = one_line

    id: str
    where: str
    statement: str
    published: str
    rule: str
    verdict: Verdict
    reason: str
    scope: str = ""
    data: str = ""
    would_change: str = ""
    measured: Numbers = field(default_factory=dict)
    source: str = ""
    needs: tuple[str, ...] = ()
    figure: str | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Check:
    """An erratum, a departure or a caveat.

    differs: whether the numbers confirm it; None if it was not measured, and then reason says why.
    """

    id: str
    where: str
    stated: str
    correct: str
    measured: Numbers = field(default_factory=dict)
    differs: bool | None = None
    reason: str = ""


@dataclass(frozen=True)
class StageOutcome:
    """How a stage ended. seconds: its running time. reason: why it failed or is incomplete, in one line."""

    name: str
    title: str = ""
    status: Literal["ran", "kept", "incomplete", "failed"] = "ran"
    seconds: float | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.status == "failed"


@dataclass(frozen=True)
class PlannedStage:
    """A stage that a reproduction needs, its running time in words, and the claims that need it."""

    name: str
    title: str
    takes: str
    claims: tuple[str, ...]
    finished: (
        bool  # whether the output folder has its records; they are kept if version and settings are unchanged
    )


@dataclass(frozen=True)
class TableRow:
    """A row of Table 1. printed: the degree in the paper, or None. measured: the slope of log‖f(cθ)‖."""

    component: str
    printed: float | None
    computed: float | None
    measured: float | None


@dataclass(frozen=True, kw_only=True)
class Reproduction(Result):
    """The claims of the paper with verdicts. The records have a row for each measured number."""

    kind: ClassVar[str] = "reproduction"

    scale: str = "demo"
    only: tuple[str, ...] = ()
    claims: tuple[Judgment, ...] = ()
    errata: tuple[Check, ...] = ()
    departures: tuple[Check, ...] = ()
    caveats: tuple[Check, ...] = ()
    stages: tuple[StageOutcome, ...] = ()
    table1: tuple[TableRow, ...] = ()

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """A reproduction with the records that belong to these claims, errata and departures."""
        found = cls(records=Records.from_blocks("reproduction", [_block("claim", "", {})]), **fields)
        return found._with_records()

    def _with_records(self) -> Self:
        parts = {
            "claim": self.claims,
            "erratum": self.errata,
            "departure": self.departures,
            "caveat": self.caveats,
        }
        blocks = [_block(level, one.id, one.measured) for level, own in parts.items() for one in own]
        return replace(self, records=Records.from_blocks("reproduction", blocks or [_block("claim", "", {})]))

    def added_to(self, earlier: "Reproduction") -> Self:
        """This reproduction, and from an earlier one what this one does not have."""
        only = tuple(dict.fromkeys((*earlier.only, *self.only))) if earlier.only and self.only else ()
        return replace(
            self,
            only=only,
            claims=_updated(earlier.claims, self.claims, attrgetter("id")),
            errata=self.errata or earlier.errata,
            departures=self.departures or earlier.departures,
            caveats=self.caveats or earlier.caveats,
            stages=_updated(earlier.stages, self.stages, attrgetter("name")),
            table1=self.table1 or earlier.table1,
        )._with_records()

    def selected(self, only: Sequence[str], claims: Collection[str], stages: Collection[str]) -> Self:
        """The part of these claims and stages. only: as in the request; empty for everything."""
        if not only:
            return self
        return replace(
            self,
            only=tuple(only),
            claims=tuple(claim for claim in self.claims if claim.id in claims),
            errata=(),
            departures=(),
            caveats=(),
            stages=tuple(stage for stage in self.stages if stage.name in stages),
            table1=self.table1 if "theory" in stages else (),
        )._with_records()

    def __getitem__(self, name: str) -> Judgment | Check:
        """A claim, an erratum, a departure or a caveat by its id."""
        for one in (*self.claims, *self.errata, *self.departures, *self.caveats):
            if one.id == name:
                return one
        raise KeyError(name)

    def command(self, claim: Judgment) -> str:
        """The command that measures a claim as here."""
        scale = ["--scale", self.scale] if self.scale != "demo" else []
        return shlex.join(["normgrowth", "reproduce", "--only", claim.id, *scale, *claim.options])

    @property
    def failed(self) -> tuple[StageOutcome, ...]:
        """The stages that failed."""
        return tuple(stage for stage in self.stages if stage.failed)

    @property
    def incomplete(self) -> tuple[StageOutcome, ...]:
        """The stages that left out parts which could not be measured."""
        return tuple(stage for stage in self.stages if stage.status == "incomplete")

    def write(self, folder: Path | str) -> None:
        content = self.to_json()
        del content["records"]  # they are derived from the other fields
        with replacing(Path(folder) / CLAIMS) as path:
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """The reproduction in the folder's claims.json."""
        path = Path(folder) / CLAIMS
        content: dict[str, Any] = read_json(path, dict, advice=ADVICE)
        refuse_other_schemas(content, path)
        records = Records.from_blocks("reproduction", [_block("claim", "", {})])
        try:
            return super().from_stored(StoredResult(records, content))._with_records()
        except SchemaError as error:
            raise SchemaError(path, error.place, error.problem, ADVICE) from error

    @staticmethod
    def stage_results(folder: Path) -> list[tuple[str, Result]]:
        """The results of the stages in an output folder, each with the name of its stage."""
        from normgrowth.paper.stage_results import stage_results

        return stage_results(folder)

    @classmethod
    def from_stored(cls, stored: StoredResult) -> Self:
        stage = stored.fields.get("stage", "a part")
        raise InputError(
            f"this is {stage!r} of a reproduction; load the output folder of `reproduce` instead"
        )


def _updated(earlier: Sequence[T], new: Sequence[T], key: Callable[[T], str]) -> tuple[T, ...]:
    return tuple({**{key(one): one for one in earlier}, **{key(one): one for one in new}}.values())


def finite(numbers: Mapping[str, float]) -> Numbers:
    return {name: float(value) if isfinite(value) else None for name, value in numbers.items()}


def _block(level: str, name: str, numbers: Numbers) -> Block:
    values = {
        label: np.array([[np.nan if value is None else value]], np.float64)
        for label, value in numbers.items()
    }
    return Block(level, [name], [None], [None], [0], values)
