"""Corners of the training lab: what a kill leaves behind, who stops it, corpora of almost nothing."""

import io
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from normgrowth import load
from normgrowth.errors import InputError
from normgrowth.lab.data.corpus import load_corpus
from normgrowth.lab.interrupt import heard_between_steps
from normgrowth.lab.run import Run
from normgrowth.lab.settings import TrainSettings
from normgrowth.lab.training_loop import Diverged
from normgrowth.records import Records
from normgrowth.report.renderers import show
from normgrowth.train import train as train_run


def train(*arguments, **options):
    """The records of a run."""
    return train_run(*arguments, **options).records


pytestmark = pytest.mark.usefixtures("one_thread")

TINY = TrainSettings(
    corpus="anbn",
    longest=8,
    layers=1,
    width=8,
    heads=2,
    feedforward=8,
    batch=3,
    epochs=2,
    steps=2,
    evaluate="1",
    track="1",
    lr=0.01,
    dev_sentences=20,
    saturation_sentences=2,
)


@pytest.fixture(scope="module")
def words():
    """Ten to train on: four steps an epoch."""
    whole = load_corpus("anbn", longest=8)
    return replace(whole, train=whole.train[:10], valid=whole.valid[:9], test=whole.test[:9])


def shown(result):
    file = io.StringIO()
    show(result, Console(file=file, width=120))
    return file.getvalue()


# Killed ----------------------------------------------------------------------------------------------


def test_what_a_kill_leaves_goes_and_what_it_put_aside_comes_back(tmp_path, words):
    run = tmp_path / "run"
    train(TINY, run, corpus=words)
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    best = (run / "best" / "model.safetensors").read_bytes()
    # killed between the two names of the best, and while it wrote a state and one of the series
    (run / "best").rename(run / ".best.4711.old")
    shutil.copytree(run / ".best.4711.old", run / ".best.4711.part")
    (run / ".state.pt.4711.part").write_bytes(b"half")
    (run / "checkpoints" / ".step-00000002.4711.part").mkdir()
    shutil.copytree(run / "checkpoints" / "step-00000001", run / "checkpoints" / ".step-00000001.4711.old")
    train(TINY, run, corpus=words)
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before
    assert (run / "best" / "model.safetensors").read_bytes() == best


@pytest.mark.parametrize("extra", [np.float64(1.0), Console])
def test_a_state_with_more_than_tensors_is_refused_without_advice_of_torch(tmp_path, words, extra):
    run = tmp_path / "run"
    train(TINY, run, corpus=words)
    state = torch.load(run / "state.pt", weights_only=True)
    torch.save({**state, "extra": extra}, run / "state.pt")
    with pytest.raises(InputError, match="more than tensors") as caught:
        train(TINY, run, corpus=words)
    said = str(caught.value).lower()
    assert "trust" not in said
    assert "weights" not in said
    assert "remove it to start over" in said
    (run / "state.pt").unlink()
    train(TINY, run, corpus=words)


def test_killed_before_it_had_said_what_it_is(tmp_path, words):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".request.json.4711.part").write_text('{"corpus": "an')
    train(TINY, run, corpus=words)
    assert not list(run.glob(".*.part"))


class Stopped(Exception):
    pass


@pytest.mark.parametrize("after", [2, 4, 5])  # the fourth step ends an epoch
@pytest.mark.parametrize(
    "options",
    [{"optimizer": "sgd"}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adafactor", "tied": True}],
)
def test_every_optimizer_goes_on_to_the_bit(tmp_path, words, options, after):
    settings = replace(
        TINY, steps=6, evaluate="3", schedule="cosine", warmup=1, saturation_sentences=0, **options
    )

    def stop(step, total, facts):
        if step == after:
            raise Stopped

    whole, parts = tmp_path / "whole" / "run", tmp_path / "parts" / "run"
    train(settings, whole, corpus=words)
    with pytest.raises(Stopped):
        train(settings, parts, corpus=words, progress=stop, save_seconds=0.0)
    train(settings, parts, corpus=words)
    one, other = (
        load_file(run / "checkpoints" / "step-00000006" / "model.safetensors") for run in (whole, parts)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [sorted(map(str, Records.read(run).table.to_pylist())) for run in (whole, parts)]
    assert rows[0] == rows[1]


# Told to stop ----------------------------------------------------------------------------------------


def test_ctrl_c_passed_on_by_torchrun_is_the_same_ctrl_c():
    with heard_between_steps() as stopping:
        assert not stopping()
        os.kill(os.getpid(), signal.SIGINT)
        assert stopping()
        os.kill(os.getpid(), signal.SIGINT)
    with heard_between_steps(same=0.0):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(
            os.getpid(), signal.SIGTERM
        )  # torchrun's, once a worker is done: the first may be saving still
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_development_loss_that_is_no_number(tmp_path, words):
    with pytest.raises(Diverged, match="the development loss is nan after step 1, so the run stops"):
        train(replace(TINY, optimizer="sgd", lr=1e30), tmp_path / "run", corpus=words)
    assert Records.read(tmp_path / "run").series("dev_loss")[0].tolist() == [0]


def test_records_that_cannot_be_written(tmp_path, words):
    run = tmp_path / "run"
    train(TINY, run, corpus=words)
    (run / "records.parquet").unlink()
    (run / "records.parquet").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*records\.parquet: .* same command again to resume"):
        train(TINY, run, corpus=words)


# Folders ---------------------------------------------------------------------------------------------


def test_a_run_in_the_present_folder_has_its_name(tmp_path, words, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run = train_run(TINY, ".", corpus=words)
    assert run.records.distinct("run") == ["here"]
    assert shown(run).startswith("here: paper_pre_norm")


def test_a_schedule_that_cannot_be_takes_no_folder(tmp_path, words):
    with pytest.raises(InputError, match="must be greater than warmup"):
        train(replace(TINY, schedule="linear", warmup=9), tmp_path / "run", corpus=words)
    train(replace(TINY, schedule="linear", warmup=1), tmp_path / "run", corpus=words)


# Corpora ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parity", "majority"])
def test_words_so_short_that_a_symbol_is_never_seen(tmp_path, name):
    settings = replace(TINY, corpus=name, longest=1)
    result = train_run(settings, tmp_path / "run")
    records = result.records
    assert result.corpus.vocabulary == 4  # both symbols all the same
    assert ((records.series("legal_mass")[1] > 0) & (records.series("legal_mass")[1] < 1)).all()


def test_one_token_at_a_time(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.txt").write_text("a b a\n")
    run = train_run(replace(TINY, corpus=str(tmp_path), positions=1, min_count=1), tmp_path / "run")
    assert "Saturation, mean over blocks, went from" in shown(run)
    assert "other tokens" not in shown(run)


def test_word_frequencies_are_judged_where_the_model_is(tmp_path):
    (tmp_path / "train.txt").write_text("a a a a b\n")
    (tmp_path / "valid.txt").write_text("a a\nb b b\n")
    (tmp_path / "test.txt").write_text("a\n")
    settings = replace(TINY, corpus=str(tmp_path), min_count=1, dev_sentences=1)
    found = train_run(settings, tmp_path / "run").corpus.frequency_loss
    share = {"a": 4 / 7, "end": 1 / 7}  # <unk> counts as once
    assert found == pytest.approx(-(2 * np.log(share["a"]) + np.log(share["end"])) / 3, rel=1e-12)


def test_a_run_is_typed_saved_loaded_and_printed(words, tmp_path):
    found = train_run(TINY, tmp_path / "run", corpus=words)
    assert isinstance(found, Run)
    assert found.settings == TINY
    assert found.best_step in [evaluation.step for evaluation in found.evaluations]
    best = min(evaluation.scores["dev_loss"] for evaluation in found.evaluations)
    assert {e.step: e.scores["dev_loss"] for e in found.evaluations}[found.best_step] == best
    assert found.test is not None
    assert found.test.scores["perplexity"] > 0
    for folder in (tmp_path / "run", found.save(tmp_path / "copy")):
        again = load(folder)
        assert isinstance(again, Run)
        assert (again.settings, again.corpus, again.evaluations) == (TINY, found.corpus, found.evaluations)
        assert (again.steps, again.parameters, again.counted) == (
            found.steps,
            found.parameters,
            found.counted,
        )
    assert "dev" in str(found)


def test_threads_are_set_and_checked(tmp_path):
    before = torch.get_num_threads()
    try:
        with pytest.raises(InputError, match="threads must be >= 1, got 0"):
            train_run(TrainSettings(corpus="nowhere"), tmp_path / "none", threads=0)
        assert not (tmp_path / "none").exists()
        with pytest.raises(InputError):
            train_run(TrainSettings(corpus="nowhere"), tmp_path / "none", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
