"""Series: which files are checkpoints, in which order, and what is said about the rest."""

import json
import os
import shlex

import numpy as np
import pytest
import torch
from bundle_files import write_bundle
from refusals import refused
from safetensors.torch import save_file
from synthetic_series import tiny_state, walk, write_series

import normgrowth
from normgrowth import InputError, open_source, trace
from normgrowth.checkpoints.steps import explicit_step, guessed_step, is_counter
from normgrowth.errors import SeriesWarning


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("step_1000", 1000),
        ("step1000-tokens4B", 1000),
        ("global_step12", 12),
        ("global-step-12", 12),
        ("epoch=3-step=1200", 1200),
        ("iter_0000500", 500),
        ("iteration500", 500),
        ("model.ckpt-524288", 524288),
        ("ckpt_10k", 10_000),
        ("step-2M", 2_000_000),
        ("10000_steps", 10_000),
        ("5k-steps", 5000),
        ("stage1-step300-tokens2B", 300),
        ("checkpoint-2-step-70", 70),
        ("STEP_7", 7),
        ("step_1.5k", 1500),
        ("step_0.5k", 500),
        ("checkpoint_2_200", 200),
        ("ep0-ba100-rank0", 100),
        ("step_999999999999999991m", None),
        ("step0", 0),
        ("model", None),
        ("gpt2", None),
        ("stepper3", None),
        ("epoch_3", None),
        ("v1.5", None),
        ("step", None),
    ],
)
def test_steps_that_a_name_says(name, step):
    assert explicit_step(name) == step


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3", 3),
        ("0007", 7),
        ("model_12", 12),
        ("run2_model_12", 12),
        ("model_10_0.52", 10),
        ("weights.100-0.23", None),
        ("gpt2", None),
        ("x", None),
    ],
)
def test_steps_that_a_name_suggests(name, step):
    assert guessed_step(name) == step


def steps(source):
    return [entry.step for entry in open_source(source).entries]


def test_files_in_the_order_of_steps(tmp_path):
    write_series(tmp_path, walk(12))
    assert steps(tmp_path) == [100 * i for i in range(12)]
    assert steps(str(tmp_path)) == steps(tmp_path)
    assert steps(str(tmp_path / "step_?00.safetensors")) == [100 * i for i in range(1, 10)]
    assert steps([tmp_path / "step_300.safetensors", tmp_path / "step_100.safetensors"]) == [100, 300]


def test_a_trainer_output_folder(tmp_path):
    state = tiny_state()
    for step in (500, 1000, 1500):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        torch.save({"state": {0: {"exp_avg": torch.ones(3)}}}, folder / "optimizer.pt")
        torch.save({"x": torch.ones(3)}, folder / "rng_state.pth")
        torch.save({"x": torch.ones(3)}, folder / "training_args.bin")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 1500}))
    series = open_source(tmp_path)
    assert [entry.step for entry in series.entries] == [500, 1000, 1500]
    assert any("model.safetensors: skipped" in note for note in series.notes)
    assert set(series.entries[0].open().tensors) == set(state)
    assert steps(tmp_path / "checkpoint-500") == [500]


def test_both_formats_of_one_repository_are_one_checkpoint(tmp_path):
    save_file(tiny_state(), tmp_path / "model.safetensors")
    torch.save(tiny_state(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05<unk>")
    assert len(open_source(tmp_path)) == 1


def test_a_folder_per_step_with_shards_and_deep_folders(tmp_path):
    for step in (1, 20):
        folder = tmp_path / "runs" / f"step{step}" / "model"
        folder.mkdir(parents=True)
        names = list(tiny_state())
        weight_map = {}
        for i, part in enumerate((names[:3], names[3:]), 1):
            shard = f"model-{i:05d}-of-00002.safetensors"
            save_file({n: tiny_state()[n] for n in part}, folder / shard)
            weight_map |= dict.fromkeys(part, shard)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert steps(tmp_path) == [1, 20]


def test_a_lightning_folder(tmp_path):
    folder = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    for epoch in range(3):
        content = {"state_dict": tiny_state(epoch), "global_step": 50 * epoch, "epoch": epoch}
        torch.save(content, folder / f"epoch={epoch}-step={50 * epoch}.ckpt")
    assert steps(tmp_path) == [0, 50, 100]


def test_a_step_stored_inside_beats_a_guess(tmp_path):
    for epoch, step in ((1, 300), (2, 600)):
        torch.save({"model": tiny_state(), "global_step": step}, tmp_path / f"epoch_{epoch}.pt")
    assert steps(tmp_path) == [300, 600]
    save_file(tiny_state(), tmp_path / "other.safetensors", metadata={"step": "450"})
    assert steps(tmp_path) == [300, 450, 600]


def origins(source) -> dict[int, str]:
    return {entry.step: entry.step_origin for entry in open_source(source).entries}


def test_a_step_stored_inside_beats_a_name_that_counts(tmp_path):
    for count, step in ((1, 300), (2, 600), (10, 900)):
        torch.save({"model": tiny_state(), "global_step": step}, tmp_path / f"checkpoint_{count}.pt")
    assert origins(tmp_path) == {300: "stored", 600: "stored", 900: "stored"}
    assert any("step 900" in note and "10 in its name" in note for note in open_source(tmp_path).notes)
    assert origins(tmp_path / "checkpoint_10.pt") == {900: "stored"}
    with pytest.warns(SeriesWarning, match="step 900"):
        result = trace(tmp_path, lint=False)
    assert result.steps == (300, 600, 900)
    assert result.step_origins == ("stored",) * 3


def test_a_name_that_counts_stays_where_no_step_of_the_run_is_stored(tmp_path):
    for count in (1, 2):  # the step within an epoch, the same in each
        torch.save({"model": tiny_state(), "step": 99}, tmp_path / f"ckpt-{count}.pt")
    assert origins(tmp_path) == {1: "name", 2: "name"}
    save_file(tiny_state(), tmp_path / "ckpt-3.safetensors")
    assert origins(tmp_path) == {1: "name", 2: "name", 3: "name"}


@pytest.mark.parametrize("without", [1, 4])
def test_stored_steps_that_are_not_used_are_said(tmp_path, without):
    for count in (1, 2, 3, 4):
        state = {"w": np.ones(2, "f4")} | (
            {"optimizer/iter": np.int64(500 * count)} if count != without else {}
        )
        write_bundle(tmp_path / f"ckpt-{count}", state)
    assert origins(tmp_path) == dict.fromkeys((1, 2, 3, 4), "name")
    (note,) = open_source(tmp_path).notes
    assert f"ckpt-{without}.index has none" in note
    assert f"stored step {1500 if without == 4 else 2000} is not used" in note
    write_bundle(
        tmp_path / f"ckpt-{without}", {"w": np.ones(2, "f4"), "optimizer/iter": np.int64(500 * without)}
    )
    assert origins(tmp_path) == dict.fromkeys((500, 1000, 1500, 2000), "stored")


def test_a_stored_step_that_does_not_increase_is_said(tmp_path):
    for count, step in ((1, 300), (2, 600), (3, 600)):
        torch.save({"model": tiny_state(), "step": step}, tmp_path / f"ckpt-{count}.pt")
    assert origins(tmp_path) == dict.fromkeys((1, 2, 3), "name")
    assert any("does not follow step 600" in note for note in open_source(tmp_path).notes)


def test_a_name_that_says_step_is_not_doubted(tmp_path):
    for step in (10, 20):
        torch.save({"model": tiny_state(), "step": 3 * step}, tmp_path / f"step_{step}.pt")
        torch.save({"model": tiny_state(), "step": 3 * step}, tmp_path / f"ckpt_{step}k.pt")
    assert origins(tmp_path) == dict.fromkeys((10, 20, 10_000, 20_000), "name")


def test_the_origin_of_a_step(tmp_path):
    for name in ("a", "b"):
        save_file(tiny_state(), tmp_path / f"{name}.safetensors")
    assert origins(tmp_path) == {0: "counted", 1: "counted"}
    save_file(tiny_state(), tmp_path / "epoch_4.safetensors")
    assert origins(tmp_path) == {4: "guessed"}
    save_file(tiny_state(), tmp_path / "other.safetensors", metadata={"step": "450"})
    assert origins(tmp_path) == {4: "guessed", 450: "stored"}
    assert any("step 450 is stored in the checkpoint" in note for note in open_source(tmp_path).notes)
    save_file(tiny_state(), tmp_path / "step_500.safetensors")
    assert origins(tmp_path) == {4: "guessed", 450: "stored", 500: "name"}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *[
            (name, True)
            for name in ("ckpt-12", "checkpoint_3", "checkpoint12", "model.ckpt-7", "Checkpoint.4")
        ],
        *[
            (name, False)
            for name in ("ckpt_10k", "step_12", "global_step12", "checkpoint_5_2000", "epoch_3", "12")
        ],
        *[(name, False) for name in ("checkpoint-3-step-500", "iter_0000500", "model")],
    ],
)
def test_names_that_may_count_saves(name, counts):
    assert is_counter(name) == counts


def test_what_has_no_step_is_said(tmp_path):
    write_series(tmp_path, walk(2))
    save_file(tiny_state(), tmp_path / "best.safetensors")
    series = open_source(tmp_path)
    assert len(series) == 2
    assert any("best.safetensors: skipped" in note for note in series.notes)


def test_no_steps_at_all_counts_in_natural_order(tmp_path):
    for name in ("b", "a", "c"):
        save_file(tiny_state(), tmp_path / f"{name}.safetensors")
    series = open_source(tmp_path)
    assert [entry.label[-13] for entry in series.entries] == ["a", "b", "c"]
    assert any("numbered 0, 1, 2" in note for note in series.notes)


def test_two_checkpoints_of_one_step_are_an_error(tmp_path):
    save_file(tiny_state(), tmp_path / "step_1.safetensors")
    torch.save(tiny_state(), tmp_path / "step_1.pt")
    with pytest.raises(InputError, match="both have step 1"):
        open_source(tmp_path)


LAYOUTS = {
    "deepspeed": [
        "global_step{}/mp_rank_00_model_states.pt",
        "global_step{}/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    ],
    "trainer with deepspeed": [
        "checkpoint-{}/model.safetensors",
        "checkpoint-{}/global_step{}/mp_rank_00_model_states.pt",
    ],
    "olmo": ["step{}-unsharded/model.pt", "step{}-unsharded/optim.pt", "step{}-unsharded/train.pt"],
    "averaged beside": ["checkpoint-{}/model.safetensors", "checkpoint-{}/ema.safetensors"],
    "half beside": ["checkpoint-{}/model.safetensors", "checkpoint-{}/model.fp16.safetensors"],
    "mistral": ["step{}/model.safetensors", "step{}/consolidated.safetensors"],
    "composer": ["ep0-ba{}-rank0.pt"],
    "below a numbered folder": ["step2_sft/ckpts/{}.pt"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_training_codes(tmp_path, layout):
    source = tmp_path / "checkpoint-5" if layout == "below a numbered folder" else tmp_path / "run"
    for step in (100, 200):
        for name in LAYOUTS[layout]:
            path = source / name.format(step, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            state = (
                tiny_state(step) if path == source / LAYOUTS[layout][0].format(step, step) else tiny_state(1)
            )
            save_file(state, path) if path.suffix == ".safetensors" else torch.save({"module": state}, path)
    if layout == "below a numbered folder":
        source = source / "step2_sft" / "ckpts"
    series = open_source(source)
    assert [entry.step for entry in series.entries] == [100, 200]
    for entry in series.entries:
        bits = entry.open().dense("lm_head.weight")
        assert bits.tobytes() == tiny_state(entry.step)["lm_head.weight"].numpy().tobytes()


def test_copies_and_links_of_a_step_are_left_out(tmp_path):
    for step in (100, 200):
        torch.save(
            {"state_dict": tiny_state(step), "global_step": step}, tmp_path / f"epoch=0-step={step}.ckpt"
        )
    torch.save({"state_dict": tiny_state(200), "global_step": 200}, tmp_path / "last.ckpt")
    (tmp_path / "best.ckpt").symlink_to(tmp_path / "epoch=0-step=100.ckpt")
    (tmp_path / "loop").symlink_to(tmp_path)
    series = open_source(tmp_path)
    assert [entry.step for entry in series.entries] == [100, 200]
    assert any("last.ckpt: skipped" in note for note in series.notes)


def without_target(path):
    path.symlink_to("../cache/missing")


@pytest.mark.parametrize("make", [without_target, os.mkfifo])
@pytest.mark.parametrize(
    "name", ["checkpoint-2/model.safetensors", "checkpoint-2/pytorch_model.bin", "checkpoint-2", "step_2.pt"]
)
def test_weights_that_are_no_file_are_a_partial_checkpoint(tmp_path, make, name):
    for step in (1, 2, 3):
        folder = tmp_path / f"checkpoint-{step}"
        if step != 2:
            folder.mkdir()
            save_file(tiny_state(step), folder / "model.safetensors")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    make(tmp_path / name)
    why = "link whose target" if make is without_target else "a pipe"
    assert steps(tmp_path) == [1, 2, 3]
    with pytest.raises(InputError, match=why):
        normgrowth.trace(tmp_path)
    (fault,) = normgrowth.lint(tmp_path).faults
    assert (fault.step, fault.kind) == (2, "partial")
    assert why in fault.why
    with pytest.raises(InputError, match=why):
        normgrowth.trace(tmp_path / name)


def test_other_links_without_target_are_ignored(tmp_path):
    write_series(tmp_path, walk(2))
    for name in ("optimizer.pt", "notes.txt", "data", ".hidden.pt"):
        without_target(tmp_path / name)
    os.mkfifo(tmp_path / "pipe")
    assert len(normgrowth.lint(tmp_path)) == 0


def test_a_model_and_its_parts_are_one_checkpoint(tmp_path):
    """A sentence-transformers folder: the parts below it have numbers, but no steps."""
    save_file(tiny_state(), tmp_path / "model.safetensors")
    (tmp_path / "2_Dense").mkdir()
    save_file({"linear.weight": torch.ones(3, 3)}, tmp_path / "2_Dense" / "model.safetensors")
    series = open_source(tmp_path)
    assert len(series) == 1
    assert "lm_head.weight" in series.entries[0].open().tensors
    assert any("2_Dense" in note for note in series.notes)


def test_files_that_are_no_model_are_left_out_and_named(tmp_path):
    write_series(tmp_path, walk(2))
    torch.save(torch.arange(9), tmp_path / "tokens.pt")
    (tmp_path / "notes.pt").write_text("hello")
    series = open_source(tmp_path)
    assert [entry.step for entry in series.entries] == [0, 100]
    assert any("tokens.pt" in note for note in series.notes)
    assert any("notes.pt" in note for note in series.notes)


def test_a_guess_is_said_to_be_one(tmp_path):
    for i in (1, 2):
        save_file(tiny_state(), tmp_path / f"model_{i}.safetensors")
    series = open_source(tmp_path)
    assert [entry.step for entry in series.entries] == [1, 2]
    assert any("guessed from its name" in note for note in series.notes)


def test_tensor_parallel_parts_are_not_taken_for_a_model(tmp_path):
    (tmp_path / "global_step5").mkdir()
    for i in range(2):
        torch.save({"module": tiny_state(i)}, tmp_path / "global_step5" / f"mp_rank_{i:02d}_model_states.pt")
    with pytest.raises(InputError, match="tensor-parallel parts of one model cannot be joined"):
        open_source(tmp_path)


def test_generators_home_and_relative_paths(tmp_path, monkeypatch):
    write_series(tmp_path / "checkpoint-7", walk(2))
    assert steps((tmp_path / "checkpoint-7").glob("*.safetensors")) == [0, 100]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert steps("~/checkpoint-7") == [0, 100]
    (tmp_path / "checkpoint-8").mkdir()
    save_file(tiny_state(), tmp_path / "checkpoint-8" / "model.safetensors")
    monkeypatch.chdir(tmp_path / "checkpoint-8")
    assert steps(".") == [8]


@pytest.mark.parametrize("what", ["missing", "empty", "text", "glob", "list", "shard"])
def test_sources_without_checkpoints(tmp_path, what):
    source = tmp_path
    if what == "missing":
        source = tmp_path / "missing"
    if what == "text":
        source = tmp_path / "a.txt"
        source.write_text("hello")
    if what == "glob":
        source = str(tmp_path / "*.nothing")
    if what == "list":
        source = []
    if what == "shard":
        save_file(tiny_state(), tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(InputError) as error:
        open_source(source)
    assert "\n" not in str(error.value)


def test_a_series_yields_step_name_array_lazily(tmp_path):
    states = walk(2)
    write_series(tmp_path, states)
    seen = [(step, name, values.sum()) for step, name, values in open_source(tmp_path)]
    assert len(seen) == 2 * len(states[0])
    total = sum(t.double().sum().item() for state in states for t in state.values())
    assert sum(value for _, _, value in seen) == pytest.approx(total)


def test_two_runs_with_files_of_one_name_size_and_time_differ(tmp_path):
    import os

    for run in ("a", "b"):
        write_series(tmp_path / run, [tiny_state(len(run) + ord(run))])
        os.utime(tmp_path / run / "step_0.safetensors", (1.7e9, 1.7e9))
    one, other = (open_source(tmp_path / run).entries[0].fingerprint for run in ("a", "b"))
    assert one != other


def test_a_changed_file_changes_its_fingerprint(tmp_path):
    write_series(tmp_path, walk(2))
    before = [entry.fingerprint for entry in open_source(tmp_path).entries]
    save_file(tiny_state(9), tmp_path / "step_100.safetensors")
    after = [entry.fingerprint for entry in open_source(tmp_path).entries]
    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_why_no_checkpoint_of_a_folder_can_be_read(tmp_path, count):
    for i in range(count):
        torch.save({"epoch": i, "w": torch.ones(3).cfloat()}, tmp_path / f"epoch_{i}.pt")
    message = refused(open_source, tmp_path)
    assert "epoch_0.pt" in message
    assert "complex64" in message
    if count > 1:
        assert f"{count} checkpoints" in message


def test_of_two_numbers_in_a_name_the_one_that_varies_is_the_step(tmp_path):
    for k in (1, 2, 10):
        torch.save({"w": torch.ones(3)}, tmp_path / f"epoch2_{k}.pt")
    series = open_source(tmp_path)
    assert [entry.step for entry in series.entries] == [1, 2, 10]
    assert {entry.step_origin for entry in series.entries} == {"guessed"}


def test_three_series_in_a_folder_are_told_apart_by_globs(tmp_path):
    for name in ("epoch_{}", "epoch2_{}", "epoch_no_thresh_{}"):
        for k in (1, 2, 10):
            torch.save({"w": torch.ones(3)}, tmp_path / f"{name.format(k)}.pt")
    with pytest.raises(InputError, match="several series") as caught:
        open_source(tmp_path)
    globs = shlex.split(str(caught.value).partition("Select one: ")[2])[::2]
    assert [len(open_source(pattern)) for pattern in globs] == [3, 3, 3]
