"""Runs on real ranks (gloo): each planted fault is named with its step and tensor, and no honest pair is accused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from compare import transformers_pairs
from compare.pairs import LONG_FAULTS, LONG_HONEST, SHORT_FAULTS, SHORT_HONEST, Fault

import normgrowth as ng
from normgrowth.report.sentences.comparison import verdict

TESTS = Path(__file__).parents[1]


def folder_of(settings: Any) -> str:
    return sha256(repr(settings).encode()).hexdigest()[:12]


def trained(runs: Iterable[Any], folder: Path) -> dict[Any, Path]:
    """Train every run once, all in one launch; the folders of their trackers."""
    chosen = dict.fromkeys(runs)
    (module,) = {type(settings).__module__ for settings in chosen}
    done = subprocess.run(
        [sys.executable, "-m", "compare.launch", module, str(folder)],
        cwd=TESTS,
        input=json.dumps({folder_of(settings): asdict(settings) for settings in chosen}),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {settings: folder / folder_of(settings) for settings in chosen}


def check(honest: dict[str, tuple[Any, Any]], faults: dict[str, Fault], folder: Path) -> None:
    pairs = [*honest.values(), *((fault.a, fault.b) for fault in faults.values())]
    runs = trained((settings for pair in pairs for settings in pair), folder)
    wrong = {}
    for name, (a, b) in honest.items():
        found = ng.compare(runs[a], runs[b])
        assert found.alignment.steps > 1, name
        if found.parted:
            wrong[name] = verdict(found)[0]
    for name, fault in faults.items():
        inverse = None if fault.factor is None else 1 / fault.factor
        for a, b, factor in ((fault.a, fault.b, fault.factor), (fault.b, fault.a, inverse)):
            if said := mistake(ng.compare(runs[a], runs[b]), fault, factor):
                wrong[name] = said
    assert not wrong


def mistake(found: ng.Comparison, fault: Fault, factor: float | None) -> str:
    """What is wrong with a verdict; "" if nothing."""
    if not found.diagnoses:
        return "not found"
    first, says = found.diagnoses[0], verdict(found)[0]
    if (first.cause, first.step) != (fault.cause, fault.step):
        return says
    if fault.tensor and first.tensors[0] != fault.tensor:
        return f"{first.tensors[0]}: {says}"
    if factor is not None and first.factor != pytest.approx(factor, rel=1e-3):
        return f"factor {first.factor}: {says}"
    if f"step {fault.step}" not in says or not any(tensor in says for tensor in first.tensors):
        return f"does not name step or tensor: {says}"
    return ""


def test_faults_are_named_and_honest_pairs_are_not_accused(tmp_path):
    check(SHORT_HONEST, SHORT_FAULTS, tmp_path)


@pytest.mark.slow
def test_all_faults_are_named_and_all_honest_pairs_are_not_accused(tmp_path):
    check(LONG_HONEST, LONG_FAULTS, tmp_path)


def test_models_of_transformers(tmp_path):
    check(transformers_pairs.SHORT_HONEST, transformers_pairs.SHORT_FAULTS, tmp_path)


@pytest.mark.slow
def test_all_runs_of_models_of_transformers(tmp_path):
    check(transformers_pairs.LONG_HONEST, transformers_pairs.LONG_FAULTS, tmp_path)
