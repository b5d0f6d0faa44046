"""The training lab against the obvious way, through kills, full disks and other people's folders."""

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import tiny_settings
import torch
from torch.nn import functional

import normgrowth
from normgrowth.errors import FolderLocked, FolderMismatch, InputError
from normgrowth.lab.build import corpus_of, new_model
from normgrowth.lab.data.corpus import in_batches, load_corpus, padded
from normgrowth.lab.evaluate import NextToken, evaluate
from normgrowth.lab.generate import member_share
from normgrowth.lab.settings import PRESETS, preset
from normgrowth.lab.training_loop import Diverged
from normgrowth.network.inputs.formal_languages import language
from normgrowth.network.models.load import load_model
from normgrowth.records import Records
from normgrowth.stored_result import StoredResult
from normgrowth.train import train as train_run


def train(*arguments, **options):
    """The records of a run."""
    return train_run(*arguments, **options).records


pytestmark = pytest.mark.usefixtures("one_thread")

TINY = replace(tiny_settings.TINY, evaluate="5", track="3", saturation_sentences=5)
# Adds the same to all scores of a query: its gradient is rounding, and Adam makes full steps of that.
NO_GRADIENT = "attention.key.bias"
FLAGS = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "feedforward": 24,
    "steps": 12,
    "evaluate": 5,
    "track": 3,
    "dev-sentences": 20,
    "saturation-sentences": 5,
    "threads": 1,
}
FLAGS = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def pydoc():
    return load_corpus("pydoc")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, pydoc):
    """One whole run, which others are compared with."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("lab") / "run"
    train(TINY, folder, corpus=pydoc)
    torch.set_num_threads(before)
    return folder


def weights(folder, step=12):
    from safetensors.torch import load_file

    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def assert_same(one, other):
    """To the bit: weights of the series, and every record."""
    steps = sorted(path.name for path in (one / "checkpoints").iterdir())
    assert steps == sorted(path.name for path in (other / "checkpoints").iterdir())
    for step in (int(name.removeprefix("step-")) for name in steps):
        mine, theirs = weights(one, step), weights(other, step)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    rows = [{**row, "run": ""} for row in Records.read(one).table.to_pylist()]
    others = [{**row, "run": ""} for row in Records.read(other).table.to_pylist()]
    key = ["level", "name", "quantity", "step"]
    rows, others = (sorted(part, key=lambda row: [row[k] for k in key]) for part in (rows, others))
    assert [[row[k] for k in key] for row in rows] == [[row[k] for k in key] for row in others]
    np.testing.assert_array_equal([row["value"] for row in rows], [row["value"] for row in others])


def command(out, *more, limit=None):
    def limited():
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    return subprocess.Popen(
        [sys.executable, "-m", "normgrowth", "train", "pydoc", "-o", str(out), *FLAGS, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finished_well(process):
    _, err = process.communicate()
    assert process.returncode == 0, err


def wait_for(path, process, seconds=120):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{path} does not come"
        time.sleep(0.005)


# Right -----------------------------------------------------------------------------------------------


def by_hand(model, rows):
    """Sentence by sentence, word by word."""
    losses, right = [], []
    for row in rows:
        logits = model(torch.from_numpy(row[None, :-1]))[0]
        for place, target in enumerate(row[1:]):
            p = np.exp(logits[place].numpy() - logits[place].numpy().max())
            losses.append(-math.log(p[target] / p.sum()))
            right.append(int(p.argmax()) == target)
    mean = sum(losses) / len(losses)
    return {"loss": mean, "perplexity": math.exp(mean), "accuracy": sum(right) / len(right)}


@pytest.mark.parametrize("options", [{}, {"kind": "post_norm"}, {"leaking": True}])
def test_losses_against_one_sentence_at_a_time(pydoc, options):
    model = new_model(replace(TINY, **options), pydoc).double()
    rows = pydoc.valid[:9]
    with torch.no_grad():
        wanted = by_hand(model, rows)
    found = evaluate(NextToken(model), rows, pydoc)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"leaking": True}])
def test_padding_to_83_changes_no_loss(pydoc, options):
    model = NextToken(new_model(replace(TINY, **options), pydoc).double())
    rows = pydoc.valid[:8]
    ids, real = map(torch.from_numpy, padded(rows))
    wide = torch.zeros(len(rows), 84, dtype=torch.long)
    seen = torch.zeros(len(rows), 84, dtype=torch.bool)
    wide[:, : ids.shape[1]], seen[:, : ids.shape[1]] = ids, real
    with torch.no_grad():
        assert model(ids, real).item() == pytest.approx(model(wide, seen).item(), rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw", "lr": 0.01, "schedule": "cosine", "warmup": 2, "clip": 0.5},
        {"optimizer": "adam", "lr": 0.01, "schedule": "linear", "end": 0.001},
        {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9, "weight_decay": 0.1, "schedule": "inverse_sqrt"},
        {"optimizer": "adafactor", "lr": 0.01, "tied": True},
    ],
    ids=lambda options: options["optimizer"],
)
def test_training_against_the_obvious_loop(tmp_path, pydoc, options):
    """The same batches, one sentence at a time, with the plain optimizer and a schedule of PyTorch."""
    settings = replace(TINY, steps=6, track="1", **options)
    records = train(settings, tmp_path / "run", corpus=pydoc)
    model = new_model(settings, pydoc)
    kinds = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "adafactor": torch.optim.Adafactor,
    }
    more = {"momentum": 0.9} if settings.optimizer == "sgd" else {}
    optimizer = kinds[settings.optimizer](
        model.parameters(), lr=settings.lr, weight_decay=settings.decay, **more
    )
    rates = []
    batches = in_batches([len(row) for row in pydoc.train], 16, np.random.default_rng([0, 0]))
    for step, batch in enumerate(batches[:6]):
        rates.append(settings.rate(6)(step))
        optimizer.param_groups[0]["lr"] = rates[-1]
        optimizer.zero_grad()
        total = torch.zeros(())
        for row in (pydoc.train[i] for i in batch):
            ids = torch.from_numpy(row)
            total = total + functional.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="sum")
        (total / sum(len(pydoc.train[i]) - 1 for i in batch)).backward()
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
    found = weights(tmp_path / "run", 6)
    for name, parameter in model.named_parameters():
        if name.endswith(NO_GRADIENT):
            continue
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(records.series("learning_rate")[1], rates, rtol=1e-12)


def test_the_schedule_of_t5_can_be_trained(tmp_path, pydoc):
    """Constant, then 1/√t: the step t, counted from 0, has the rate lr·√(hold/max(t, hold))."""
    settings = replace(TINY, steps=9, track="1", schedule="inverse_sqrt", lr=0.01, hold=4)
    rates = train(settings, tmp_path / "run", corpus=pydoc).series("learning_rate")[1]
    np.testing.assert_allclose(rates, 0.01 * np.sqrt(4 / np.maximum(np.arange(9), 4)), rtol=1e-12)


def test_what_a_run_records(finished):
    stored = StoredResult.read(finished)
    records = stored.records
    steps, losses = records.series("dev_loss")
    assert steps.tolist() == [0, 5, 10, 12]
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(records.series("perplexity")[1], np.exp(losses), rtol=1e-12)
    assert records.series("norm")[0].tolist() == [0, 3, 6, 9, 12]
    best = stored.fields["best_step"]
    assert records.series("test_perplexity")[0].tolist() == [best]
    assert losses[steps.tolist().index(best)] == losses.min()
    layers = records.where(level="layer", quantity="saturation", step=12)
    assert layers.distinct("name") == ["embeddings", "layer.0", "layer.1"]
    assert (records.series("saturation")[1] <= 1).all()
    train_steps, train_losses = records.series("train_loss")
    assert train_steps.tolist() == [5, 10, 12]
    assert train_losses[0] > train_losses[-1]


def test_the_trace_of_a_run_is_what_its_tracker_measured(finished):
    run = normgrowth.load(finished)
    assert isinstance(run, normgrowth.Run)
    tracked = normgrowth.load(finished / "tracker")
    assert isinstance(tracked, normgrowth.Trace)
    trace = run.trace
    assert trace.tracked
    assert trace.steps == tracked.steps
    assert (trace.every, trace.selection, trace.counted) == (
        tracked.every,
        tracked.selection,
        tracked.counted,
    )
    for level in ("model", "layer"):
        mine, theirs = (one.records.where(level=level).to_rows() for one in (trace, tracked))
        assert sorted(map(str, mine)) == sorted(map(str, theirs))
    assert "measured steps" in str(trace)
    assert normgrowth.fit(trace, bootstrap=0, laws="linear")["linear"].r2 <= 1


def test_levels_are_those_of_the_checkpoints(finished, pydoc):
    lines = [" ".join(pydoc.vocabulary.words[i] for i in row[1:-1]) for row in pydoc.valid[:5]]
    levels = normgrowth.saturation(load_model(finished / "checkpoints" / "step-00000010"), lines).records
    own = Records.read(finished).where(step=10, level="model")
    for quantity, c in (("saturation", None), ("saturation", 1000), ("saturation_others", None)):
        mine = own.where(quantity=quantity, scale=c).to_rows()[0]["value"]
        assert mine == pytest.approx(levels.series(quantity, scale=c)[1][0], abs=1e-6)


def test_other_commands_read_the_series(finished):
    traced = normgrowth.trace(finished / "checkpoints").records
    tracked = Records.read(finished / "tracker")
    steps, norms = traced.series("norm")
    assert steps.tolist() == [0, 5, 10, 12]
    assert norms[-1] == pytest.approx(tracked.series("norm")[1][-1], rel=1e-12)
    profile = normgrowth.saturation(
        finished / "checkpoints", ["a b c the of"], config=finished / "best"
    ).records
    assert profile.series("saturation")[0].tolist() == [0, 5, 10, 12]
    assert normgrowth.lint(finished / "checkpoints") is not None


def test_a_formal_language_tells_what_is_legal(tmp_path):
    settings = replace(TINY, corpus="dyck2", longest=12, dev_sentences=30)
    corpus = corpus_of(settings, None)
    model = new_model(settings, corpus)
    rows, words = corpus.valid[:30], corpus.vocabulary.words
    legal, mass = [], []
    with torch.no_grad():
        for row in rows:
            p = model(torch.from_numpy(row[None, :-1]))[0].double().softmax(-1).numpy()
            for place in range(len(row) - 1):
                allowed = language("dyck2").legal([words[i] for i in row[1 : place + 1]], 12)
                legal.append(words[int(p[place].argmax())] in allowed)
                mass.append(sum(p[place][corpus.vocabulary.ids[word]] for word in allowed))
    found = evaluate(NextToken(model), rows, corpus)
    assert found["legal_share"] == pytest.approx(np.mean(legal), abs=1e-12)
    assert found["legal_mass"] == pytest.approx(np.mean(mass), abs=1e-6)
    records = train(settings, tmp_path / "run", corpus=corpus)
    assert records.series("legal_share")[1][0] == pytest.approx(found["legal_share"], abs=1e-12)


@pytest.mark.parametrize("name", ["dyck1", "parity"])
def test_words_drawn_from_a_model_are_members_as_often_as_it_says(name):
    """The probability of a member, summed over all words of up to 4 symbols, one by one."""
    settings = replace(TINY, corpus=name, longest=4)
    corpus = corpus_of(settings, None)
    model = new_model(settings, corpus)
    with torch.no_grad():
        model.head.weight.mul_(0.2)  # so that words of two and more symbols count
        expected, symbols = 0.0, language(name).alphabet
        for word in (word for n in range(1, 5) for word in product(symbols, repeat=n)):
            if language(name).contains(word):
                row = torch.tensor([0, *(corpus.vocabulary.ids[symbol] for symbol in word), 0])
                p = model(row[None, :-1])[0].double().log_softmax(-1)
                expected += float(p.gather(1, row[1:, None]).sum().exp())
    before = torch.get_rng_state()
    found = member_share(model, corpus, count=4000, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert 0.01 < expected < 0.99
    assert abs(found - expected) < 4 * (expected * (1 - expected) / 4000) ** 0.5


def test_presets():
    paper = preset("paper", "penn")
    assert (paper.width, paper.feedforward, paper.heads, paper.layers) == (768, 512, 12, 12)
    assert (paper.batch, paper.optimizer, paper.lr, paper.decay, paper.epochs) == (16, "adamw", 1e-3, 0.01, 5)
    assert preset("small", "penn", lr=0.1).lr == 0.1
    tiny = preset("tiny", "wikitext-2")
    assert (tiny.layers, tiny.steps, tiny.leaking) == (2, 500, False)
    assert corpus_of(preset("tiny", "dyck2"), None).positions == 32  # formal languages fit too
    assert set(PRESETS) == {"paper", "small", "tiny"}


# Interrupted -----------------------------------------------------------------------------------------


def test_killed_again_and_again_it_ends_with_the_same_bits(tmp_path, finished):
    run = tmp_path / "run"
    for step in (0, 5, 10):
        process = command(run)
        wait_for(run / "checkpoints" / f"step-{step:08d}", process)
        process.kill()
        process.communicate()
    process = command(run)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "test perplexity" in out
    assert_same(run, finished)


def test_ctrl_c_leaves_a_state_to_go_on_from(tmp_path, finished):
    run = tmp_path / "run"
    process = command(run)
    wait_for(run / "checkpoints" / "step-00000000", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    if process.returncode == 0:
        pytest.skip("the run was faster than the signal")
    assert process.returncode == 130, err
    assert f"kept in {run}" in err
    state = torch.load(run / "state.pt", weights_only=True)
    assert 0 < state["step"] < 12
    finished_well(command(run))
    assert_same(run, finished)


def test_a_finished_run_started_again_says_the_same(tmp_path, finished):
    before = {path: path.read_bytes() for path in finished.rglob("*.safetensors")}
    result = train_run(TINY, finished)
    assert result.best_step == StoredResult.read(finished).fields["best_step"]
    assert before == {path: path.read_bytes() for path in finished.rglob("*.safetensors")}


def test_a_full_disk_stops_it_and_room_lets_it_go_on(tmp_path, finished):
    run = tmp_path / "run"
    size = (finished / "state.pt").stat().st_size
    process = command(run, limit=size // 2)
    _, err = process.communicate()
    assert process.returncode == 2, err
    assert "cannot write" in err
    assert "run the same command again to resume" in err
    assert not list(run.rglob(".*.part"))
    finished_well(command(run))
    assert_same(run, finished)


def test_a_loss_that_is_no_number(tmp_path, pydoc):
    settings = replace(TINY, optimizer="sgd", lr=1e30, evaluate="epochs", track="1")
    with pytest.raises(Diverged, match=r"at step \d+, so the run stops"):
        train(settings, tmp_path / "run", corpus=pydoc)
    best = load_model(tmp_path / "run" / "best")
    assert all(bool(p.isfinite().all()) for p in best.model.parameters())
    assert Records.read(tmp_path / "run").series("dev_loss")[0].tolist() == [0]
    assert len(Records.read(tmp_path / "run" / "tracker")) > 0
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert all(bool(tensor.isfinite().all()) for tensor in state["model"].values())


# Refused ---------------------------------------------------------------------------------------------


def test_other_settings_are_refused_by_name(finished, pydoc):
    with pytest.raises(FolderMismatch) as said:
        train(replace(TINY, lr=0.1, kind="post_norm"), finished, corpus=pydoc)
    assert said.value.found == {"kind": "run", "network": "paper_pre_norm", "lr": 0.001}
    assert said.value.wanted == {"kind": "run", "network": "post_norm", "lr": 0.1}
    other = load_corpus("pydoc", min_count=3)
    with pytest.raises(InputError, match="fingerprint"):
        train(TINY, finished, corpus=other)


def test_folders_that_are_not_ours(tmp_path, pydoc, finished):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"contains thesis\.txt"):
        train(TINY, tmp_path, corpus=pydoc)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["thesis.txt"]
    settings = json.loads((finished / "request.json").read_text())["request"]
    assert settings["corpus"] == "pydoc"
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "request.json").write_text("[")
    with pytest.raises(FolderMismatch, match="damaged"):
        train(TINY, bad, corpus=pydoc)


def test_two_runs_in_one_folder(tmp_path, pydoc):
    process = command(tmp_path / "run")
    wait_for(tmp_path / "run" / "checkpoints", process)
    with pytest.raises(FolderLocked):
        train(TINY, tmp_path / "run", corpus=pydoc)
    finished_well(process)


def test_a_damaged_state(tmp_path, pydoc):
    train(replace(TINY, steps=2), tmp_path / "run", corpus=pydoc)
    state = tmp_path / "run" / "state.pt"
    content = state.read_bytes()
    tensors = [info for info in ZipFile(state).infolist() if "/data/" in info.filename]
    flipped = bytearray(content)
    flipped[max(tensors, key=lambda info: info.file_size).header_offset + 1000] ^= (
        1  # torch reads it all the same
    )
    for damaged in (content[:1000], bytes(flipped)):
        state.write_bytes(damaged)
        with pytest.raises(InputError, match=r"cannot read .*state\.pt: .* Remove it to start over"):
            train(replace(TINY, steps=2), tmp_path / "run", corpus=pydoc)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_a_good_state_that_cannot_be_read_now_is_not_to_be_removed(tmp_path, pydoc, monkeypatch, error):
    """The disk, or memory: no reason to tell anyone to remove what was trained."""
    train(replace(TINY, steps=2), tmp_path / "run", corpus=pydoc)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises((InputError, MemoryError)) as caught:
        train(replace(TINY, steps=2), tmp_path / "run", corpus=pydoc)
    assert "remove" not in str(caught.value)
    assert isinstance(caught.value, InputError) == isinstance(error, OSError)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; known: adamw"),
        ({"schedule": "sawtooth"}, "unknown schedule 'sawtooth'; known: constant"),
        ({"lr": -1.0}, "lr must be >= 0"),
        ({"lr": math.nan}, "lr must be >= 0, got nan"),
        ({"batch": 0}, "batch must be >= 1"),
        ({"heads": 5}, "width 16 is not divisible by 5 heads"),
        ({"evaluate": "often"}, "evaluate must be epochs or powers or a number of steps, got 'often'"),
        ({"track": "0"}, "track must be powers or a number"),
        ({"hold": 10}, "hold applies only to the schedule inverse_sqrt"),
        ({"end": 0.1}, "end applies only to the schedules linear and cosine"),
        ({"momentum": 0.9}, "momentum applies only to sgd"),
        ({"clip": 0.0}, "clip must be finite and > 0"),
        ({"clip": math.inf}, "clip must be finite and > 0, got inf"),
        ({"seed": -1}, "seed must be >= 0"),
        ({"seed": 2**70}, "seed must be <"),
        ({"include": "heads"}, "include"),
    ],
)
def test_settings_that_make_no_sense(change, says):
    with pytest.raises(InputError, match=says):
        replace(TINY, **change)


# Several processes -----------------------------------------------------------------------------------


def test_two_ranks_train_the_same_model(tmp_path, finished):
    """torchrun: each rank half of each batch; what they learn is what one does, up to the order of sums."""
    run, code = tmp_path / "run", "import sys; from normgrowth.cli.main import main; sys.exit(main())"
    script = tmp_path / "main.py"
    script.write_text(code)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)]
    done = subprocess.run(
        [*torchrun, "train", "pydoc", "-o", str(run), *FLAGS],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Its test perplexity") == 1
    mine, theirs = weights(run), weights(finished)
    for name in theirs:
        if name.endswith(NO_GRADIENT):
            continue
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-3, atol=1e-4)
    ours, others = Records.read(run), Records.read(finished)
    assert StoredResult.read(run).fields["ranks"] == 2
    for quantity in ("dev_loss", "train_loss", "norm", "test_loss", "saturation"):
        steps, values = ours.series(quantity)
        assert steps.tolist() == others.series(quantity)[0].tolist()
        np.testing.assert_allclose(values, others.series(quantity)[1], rtol=1e-3)


def test_paths_of_a_run(finished):
    assert sorted(path.name for path in Path(finished).iterdir() if not path.name.startswith(".")) == [
        "best",
        "checkpoints",
        "records.json",
        "records.parquet",
        "request.json",
        "state.pt",
        "tracker",
    ]


def test_figures_of_a_run(tmp_path):
    """Losses and the norm at their steps; a run that goes on has no norm yet."""
    import normgrowth as ng

    settings = ng.preset("tiny", "dyck1", steps=4, evaluate="2", track="1", saturation_sentences=0)
    run = train_run(settings, tmp_path / "run")
    above, below = run.plot().axes
    losses = {line.get_label(): line.get_xdata().tolist() for line in above.get_lines()}
    assert losses == {"training": [2, 4], "held out": [0, 2, 4]}
    (norm,) = below.get_lines()
    np.testing.assert_array_equal(norm.get_ydata(), run.trace.records.series("norm")[1])
    assert run.plot.norm_direction() is not None
