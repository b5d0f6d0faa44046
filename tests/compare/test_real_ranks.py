"""Runs on real ranks (gloo): each planted fault is named with its step and tensor, and no honest pair is accused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

import pytest
from compare.pairs import LONG_FAULTS, LONG_HONEST, SHORT_FAULTS, SHORT_HONEST, Fault
from compare.training import Settings

import normgrowth as ng
from normgrowth.report.sentences.comparison import verdict

TESTS = Path(__file__).parents[1]


def folder_of(settings: Settings) -> str:
    return sha256(repr(settings).encode()).hexdigest()[:12]


def trained(runs: Iterable[Settings], folder: Path) -> dict[Settings, Path]:
    """Train every run once, all in one launch; the folders of their trackers."""
    chosen = dict.fromkeys(runs)
    done = subprocess.run(
        [sys.executable, "-m", "compare.launch", str(folder)],
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


def check_honest(pairs: dict[str, tuple[Settings, Settings]], folder: Path) -> None:
    runs = trained((settings for pair in pairs.values() for settings in pair), folder)
    accused = {}
    for name, (a, b) in pairs.items():
        found = ng.compare(runs[a], runs[b])
        assert found.judged, name
        assert found.alignment.steps > 1
        if found.parted:
            accused[name] = verdict(found)
    assert not accused


def check_faults(faults: dict[str, Fault], folder: Path) -> None:
    runs = trained((settings for fault in faults.values() for settings in (fault.a, fault.b)), folder)
    wrong = {}
    for name, fault in faults.items():
        for turned, (a, b) in enumerate(((fault.a, fault.b), (fault.b, fault.a))):
            found = ng.compare(runs[a], runs[b])
            if not found.diagnoses:
                wrong[name, turned] = "not found"
                continue
            first = found.diagnoses[0]
            factor = None if fault.factor is None else 1 / fault.factor if turned else fault.factor
            says = verdict(found)[0]
            if (first.cause, first.step) != (fault.cause, fault.step):
                wrong[name, turned] = says
            elif fault.tensor and first.tensors[0] != fault.tensor:
                wrong[name, turned] = f"{first.tensors[0]}: {says}"
            elif factor is not None and first.factor != pytest.approx(factor, rel=1e-3):
                wrong[name, turned] = f"factor {first.factor}: {says}"
            elif f"step {fault.step}" not in says or not any(tensor in says for tensor in first.tensors):
                wrong[name, turned] = f"does not name step or tensor: {says}"
    assert not wrong


def test_honest_pairs_are_not_accused(tmp_path):
    check_honest(SHORT_HONEST, tmp_path)


@pytest.mark.slow
def test_all_honest_pairs_are_not_accused(tmp_path):
    check_honest(LONG_HONEST, tmp_path)


def test_planted_faults_are_named(tmp_path):
    check_faults(SHORT_FAULTS, tmp_path)


@pytest.mark.slow
def test_all_planted_faults_are_named(tmp_path):
    check_faults(LONG_FAULTS, tmp_path)
