"""The result of a reproduction of the paper. It needs no torch, so the base install can load and show it.

reproduction = ng.reproduce(only=["norm-sqrt"])
reproduction["norm-sqrt"].verdict
ng.load("reproduction")          # from claims.json, also of earlier versions
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal, NotRequired, Self, TypedDict

import numpy as np

from normgrowth.errors import InputError, SchemaError
from normgrowth.records import Block, Records
from normgrowth.results import CLAIMS, Result
from normgrowth.serialization.json_types import converted, read_json
from normgrowth.serialization.record_schema import refuse_newer
from normgrowth.stored_result import StoredResult
from normgrowth.text import one_line
from normgrowth.workspace import Workspace, replacing

Verdict = Literal["holds", "holds in part", "does not hold", "not shown", "not measured here"]
EARLIER_VERDICTS: Mapping[str, Verdict] = {  # verdict of an earlier version -> verdict
    "in part": "holds in part",
    "undecided": "not shown",
    "needs weights that are not here": "not measured here",
}
Numbers = dict[str, float | None]  # by label; None: not finite
ADVICE = "run `normgrowth reproduce` again"


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """A claim, what was measured here, and the verdict of its rule. needs: stages; figure: of the paper, if any.

    scope: what the verdict covers. data: what it is based on. would_change: which measurement would change it.
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
    """How a stage ended. seconds: its running time. reason: why it failed, in one line."""

    name: str
    title: str = ""
    status: Literal["ran", "kept", "failed"] = "ran"
    seconds: float | None = None
    reason: str = ""

    @property
    def failed(self) -> bool:
        return self.status == "failed"


@dataclass(frozen=True)
class TableRow:
    """A row of Table 1. printed: the degree in the paper, or None. measured: the slope of log‖f(cθ)‖."""

    component: str
    printed: float | None
    computed: float | None
    measured: float | None


class ClaimsFile(TypedDict):
    """The fields of claims.json that every version has."""

    claims: list[dict[str, Any]]
    errata: NotRequired[list[dict[str, Any]]]
    stages: NotRequired[dict[str, Any] | list[dict[str, Any]]]
    versions: NotRequired[dict[str, Any]]


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

    def __getitem__(self, name: str) -> Judgment | Check:
        """A claim, an erratum, a departure or a caveat by its id."""
        for one in (*self.claims, *self.errata, *self.departures, *self.caveats):
            if one.id == name:
                return one
        raise KeyError(name)

    @property
    def failed(self) -> tuple[StageOutcome, ...]:
        """The stages that failed."""
        return tuple(stage for stage in self.stages if stage.failed)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write claims.json into an output folder and return its path."""
        with Workspace.open(folder, self.kind, {"scale": self.scale}, overwrite=overwrite) as workspace:
            assert workspace.folder is not None
            self.write(workspace.folder)
            return workspace.folder

    def write(self, folder: Path | str) -> None:
        content = self.to_json()
        del content["records"]  # they are derived from the other fields
        with replacing(Path(folder) / CLAIMS) as path:
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """The reproduction in the folder's claims.json, also of earlier versions."""
        path = Path(folder) / CLAIMS
        content: dict[str, Any] = read_json(path, dict, advice=ADVICE)
        converted(content, ClaimsFile, path, advice=ADVICE)
        refuse_newer(content, path)
        if content.get("kind") != cls.kind:
            content = _from_schema_1(content)
        claims = [
            {**one, "verdict": EARLIER_VERDICTS.get(one.get("verdict"), one.get("verdict"))}
            for one in content["claims"]
        ]
        content = {**content, "claims": claims}
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


def finite(numbers: Mapping[str, float]) -> Numbers:
    return {name: float(value) if isfinite(value) else None for name, value in numbers.items()}


def _block(level: str, name: str, numbers: Numbers) -> Block:
    values = {
        label: np.array([[np.nan if value is None else value]], np.float64)
        for label, value in numbers.items()
    }
    return Block(level, [name], [None], [None], [0], values)


def _from_schema_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """claims.json as earlier versions wrote it: errata and departures in one list, stages in words."""

    def checks(kind: str) -> Iterable[dict[str, Any]]:
        names: dict[str, str] = {"printed": "stated", "true": "correct", "fails": "differs", "why": "reason"}
        for one in content.get("errata", []):
            if one.get("kind", "erratum") == kind:
                yield {names.get(str(key), str(key)): value for key, value in one.items() if key != "kind"}

    stages = content.get("stages", {})
    return {
        "scale": content.get("scale", "demo"),
        "only": content.get("only", []),
        "claims": [{**one, "needs": one.get("stages", [])} for one in content["claims"]],
        "errata": list(checks("erratum")),
        "departures": list(checks("departure")),
        "stages": [_stage(name, str(how)) for name, how in stages.items()],
        "provenance": {
            "version": content.get("versions", {}).get("normgrowth", ""),
            "python": content.get("versions", {}).get("python", ""),
            "created": content.get("time", ""),
        },
    }


def _stage(name: str, how: str) -> dict[str, Any]:
    if how.startswith("failed"):
        return {"name": name, "status": "failed", "reason": how.removeprefix("failed: ")}
    if how == "kept":
        return {"name": name, "status": "kept"}
    seconds = how.removesuffix(" s")
    return {"name": name, "status": "ran", "seconds": float(seconds) if seconds.isdecimal() else None}
