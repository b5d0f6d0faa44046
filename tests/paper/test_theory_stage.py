"""The stage `theory` run for real: what claims and errata make of it."""

import json
from dataclasses import asdict
from math import isfinite, nan
from pathlib import Path

import pyarrow.compute as pc
import pytest

from normgrowth.paper.claim import check, judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.caveats import CAVEATS
from normgrowth.paper.discrepancies.errata import ERRATA
from normgrowth.paper.evidence import Evidence, MissingEvidence, Theory
from normgrowth.paper.stages.known_networks import theory
from normgrowth.paper.stages.theory import THEORY
from normgrowth.records import Records
from normgrowth.stored_result import StoredResult

GOLDEN = Path(__file__).parent / "theory.json"


@pytest.fixture(scope="module")
def theory_stage():
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield theory()
    torch.set_num_threads(before)


def test_table1_claims_on_the_stage_itself(theory_stage):
    assert isinstance(theory_stage, Theory)
    ids = ("saturation-limit", "attention-power", "homogeneity-table", "encoder-degree")
    found = {name: judge(CLAIMS[name], Evidence({"theory": theory_stage})) for name in ids}
    assert {name: one.verdict for name, one in found.items()} == {
        "saturation-limit": "holds in part",
        "attention-power": "holds",
        "homogeneity-table": "holds in part",
        "encoder-degree": "holds",
    }


def test_errata_on_the_stage_itself(theory_stage):
    found = {
        name: check((ERRATA | CAVEATS)[name], Evidence({"theory": theory_stage}))
        for name in ("prop-4", "prop-2", "pre-norm", "vanishing")
    }
    assert all(one.differs for one in found.values())
    assert list(found["pre-norm"].measured.values()) == pytest.approx([1, 3], abs=1e-3)
    assert found["vanishing"].measured["1 − cosine without later attention, c = 1"] > 0.1
    assert found["vanishing"].measured["the same at c = 1000"] < 1e-9


def test_numbers_move_only_with_the_version(theory_stage):
    """After a change that is meant, increase the version and write theory.json again:

    python tests/paper/test_theory_stage.py
    """
    known = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert known["version"] == THEORY.version
    found = all_numbers(theory_stage)
    assert found.keys() == known["numbers"].keys()
    for name, value in known["numbers"].items():
        assert found[name] == pytest.approx(
            nan if value is None else value, abs=1e-6, rel=1e-6, nan_ok=True
        ), name


def all_numbers(found):
    """Every number by its network and its name; without gradients and Euler's relation where they are undefined."""
    names = {"computed": "degree", "measured": "degree_measured", "gradient": "gradient_degree"}
    groups = {"table1": found.components, "limit": found.limits, "construction": found.constructions}
    runs = {f"{group}: {name}": one for group, known in groups.items() for name, one in known.items()}
    return {
        f"{run}; {names.get(name, name)}": value
        for run, one in {**runs, "tie": found.tie, "vanishing": found.vanishing}.items()
        for name, value in asdict(one).items()
        if name not in ("gradient", "euler") or isfinite(value)
    }


def test_it_is_stored_with_its_numbers(theory_stage, tmp_path):
    theory_stage.write(tmp_path / "theory")
    again = all_numbers(Theory.read(tmp_path / "theory"))
    assert str(again) == str(all_numbers(theory_stage))  # NaN is NaN
    stored = StoredResult.read(tmp_path / "theory")
    records = stored.records.table
    StoredResult(Records(records.filter(pc.not_equal(records["level"], "tie"))), stored.fields).write(
        tmp_path / "less"
    )
    with pytest.raises(MissingEvidence, match="its records lack 'tie'"):
        Theory.read(tmp_path / "less")


if __name__ == "__main__":
    numbers = {name: value if isfinite(value) else None for name, value in all_numbers(theory()).items()}
    GOLDEN.write_text(json.dumps({"version": THEORY.version, "numbers": numbers}, indent=1) + "\n")
