"""Saturation over a series: really trained checkpoints, against models that transformers itself loads."""

import io
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from tiny_configs import tiny_config
from tiny_runs import train

import normgrowth
from normgrowth import trace
from normgrowth.checkpoints.series import open_source
from normgrowth.cli.main import main
from normgrowth.errors import FolderMismatch, InputError
from normgrowth.network.saturation.checkpoint_loader import copy_weights
from normgrowth.network.saturation.result import Saturation
from normgrowth.records import Records
from normgrowth.report.figures.saturation import levels as draw_levels
from normgrowth.report.sentences.saturation import rank_correlation
from normgrowth.report.terminal.saturation import show
from normgrowth.results import load

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = ["if the statement is false then", "a name", "the value of an attribute is the value", "one"]
SIZES = dict(vocab_size=500, n_positions=32, n_embd=32, n_layer=2, n_head=2)
STEPS = (0, 20, 40, 60)


def saturation(*arguments, **options):
    return normgrowth.saturation(*arguments, **options).records


@pytest.fixture(scope="module")
def config():
    return transformers.GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None)


@pytest.fixture(scope="module")
def series(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("series")
    for step, state in train(STEPS).items():
        save_file(state, folder / f"step_{step}.safetensors")
    config.save_pretrained(folder / "config")
    (folder / "text.txt").write_text("\n".join(TEXT))
    return folder


def levels(records, quantity, step=None, level="layer", scale=None):
    at = {} if step is None else {"step": step}
    rows = records.where(quantity=quantity, level=level, scale=scale, **at)
    return rows.table["value"].to_numpy()


def same(one, other):
    a, b = (records.table["value"].to_numpy().view(np.int64) for records in (one, other))
    return np.array_equal(a, b) and one.table.drop_columns("value").equals(other.table.drop_columns("value"))


def test_each_step_is_the_model_of_that_step(series, config):
    """Names with a prefix more (a head's checkpoint), loaded by hand here and by prefix there."""
    model = transformers.GPT2Model(config).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = normgrowth.saturation(series, config=model, texts=TEXT)
    records = result.records
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert records.where(quantity="saturation").distinct("step") == list(STEPS)
    for step in STEPS:
        head = transformers.GPT2LMHeadModel(config)
        state = load_file(series / f"step_{step}.safetensors")
        assert not head.load_state_dict(state, strict=False).unexpected_keys
        alone = saturation(head.transformer.eval(), TEXT)
        for quantity, c in (("saturation", None), ("saturation_stderr", None), ("saturation", 1000)):
            np.testing.assert_array_equal(
                levels(records, quantity, step, scale=c), levels(alone, quantity, scale=c)
            )
    assert levels(records, "saturation", 0)[1:].max() < 0.3 < levels(records, "saturation", 60)[1:].max()
    assert result.models[records.single_run()].architecture == "GPT2Model"


def test_it_joins_the_trace(series, config):
    model = transformers.GPT2Model(config)
    result, traced = normgrowth.saturation(series, config=model, texts=TEXT), trace(series)
    records, alone = result.records, traced.records
    assert records.distinct("run") == alone.distinct("run")
    for name in ("layer.0", "layer.1"):
        steps, norms = records.series("norm", level="layer", name=name)
        np.testing.assert_array_equal(norms, alone.series("norm", level="layer", name=name)[1])
        np.testing.assert_array_equal(steps, records.series("saturation", level="layer", name=name)[0])
    assert result.source == traced.source


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")
def test_killed_and_started_again_it_does_nothing_twice(series, tmp_path, config):
    out = tmp_path / "out"
    command = [
        "saturation",
        str(series),
        "--config",
        str(series / "config"),
        "--text",
        str(series / "text.txt"),
    ]
    whole = tmp_path / "whole"
    assert main([*command, "-o", str(whole), "--json"]) == 0
    process = subprocess.Popen([sys.executable, "-m", "normgrowth", *command, "-o", str(out)])
    while not list(out.glob("levels/step-*.parquet")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("levels/*.parquet")}
    assert main([*command, "-o", str(out), "--json"]) == 0
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in kept.items())
    assert same(Records.read(out), Records.read(whole))
    # Another text is another question: no old answer is given to it, nor is one lost.
    model = transformers.GPT2Model(config)
    with pytest.raises(
        FolderMismatch, match=rf"with text: {len(TEXT)} sentences .*, not .* with text: 2 sentences"
    ):
        saturation(series, config=model, texts=TEXT[:2], out=out)
    with pytest.raises(FolderMismatch):
        trace(series, out)
    assert main([*command, "-o", str(out), "--c", "10"]) == 2
    assert same(Records.read(out), Records.read(whole))
    assert main([*command, "-o", str(out), "--c", "10", "--overwrite"]) == 0
    other = saturation(series, config=model, texts=TEXT[:2], out=out, overwrite=True)
    assert levels(other, "evaluation_sentences", level="model").tolist() == [2.0] * len(STEPS)
    assert same(other, saturation(series, config=model, texts=TEXT[:2]))


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")
def test_levels_stay_when_checkpoints_are_gone(series, tmp_path, config):
    copy, out = shutil.copytree(series, tmp_path / "series"), tmp_path / "out"
    model = transformers.GPT2Model(config)
    whole = saturation(copy, config=model, texts=TEXT, out=out)
    for path in sorted(copy.glob("*.safetensors"))[:2]:
        path.unlink()
    again_result = normgrowth.saturation(copy, config=model, texts=TEXT, out=out)
    again = again_result.records
    assert same(again, whole)
    assert any("no longer exist" in note for note in again_result.notes)


def test_what_no_state_depends_on_may_be_missing(tmp_path):
    """A pooler: in the model, not in the checkpoints of a language model; anything else is asked for."""
    torch.manual_seed(0)
    config = tiny_config("bert")
    for step in (0, 1):
        state = transformers.BertModel(config, add_pooling_layer=False).state_dict()
        save_file(
            {f"bert.{name}": tensor for name, tensor in state.items()}, tmp_path / f"step_{step}.safetensors"
        )
    model = transformers.BertModel(config)
    result = normgrowth.saturation(tmp_path, config=model, texts=["a b c"])
    assert any("without effect on the states: pooler" in note for note in result.notes)
    state.pop("encoder.layer.1.output.dense.weight")
    for step in (0, 1):
        lacking = {f"bert.{name}": tensor * (1 + step / 4) for name, tensor in state.items()}
        save_file(lacking, tmp_path / f"step_{step}.safetensors")
    with pytest.raises(
        InputError, match=r"step_0.*no tensor for encoder\.layer\.1\.output\.dense\.weight and 2 more"
    ):
        saturation(tmp_path, config=model, texts=["a b c"])


def test_names_with_a_prefix_less_and_tied_ones(series, config, tmp_path):
    state = load_file(series / "step_60.safetensors")
    bare = {
        name.removeprefix("transformer."): tensor for name, tensor in state.items() if "lm_head" not in name
    }
    save_file(bare, tmp_path / "step_0.safetensors")
    model = transformers.GPT2LMHeadModel(config)
    assert copy_weights(open_source(tmp_path).entries[0].open(), model) == []
    for name, tensor in model.transformer.state_dict().items():
        assert torch.equal(tensor, bare[name])
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_dtypes(series, config, tmp_path, dtype):
    state = {name: tensor.to(dtype) for name, tensor in load_file(series / "step_60.safetensors").items()}
    save_file(state, tmp_path / "step_0.safetensors")
    model = transformers.GPT2Model(config)
    copy_weights(open_source(tmp_path).entries[0].open(), model)
    assert all(torch.equal(p, state[f"transformer.{name}"].float()) for name, p in model.named_parameters())


def test_nan_weights_are_named_and_the_rest_is_measured(series, config, tmp_path, capsys):
    for step in STEPS:
        state = load_file(series / f"step_{step}.safetensors")
        if step == 20:
            state["transformer.h.1.mlp.c_fc.weight"][3, 5] = float("nan")
        save_file(state, tmp_path / f"step_{step}.safetensors")
    code = main(
        ["saturation", str(tmp_path), "--config", str(series / "config"), "--sentences", "5", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert any("step_20" in p and "h.1.mlp.c_fc.weight contains NaN" in p for p in found["problems"])
    assert sorted({row["step"] for row in found["records"] if row["quantity"] == "saturation"}) == [0, 40, 60]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"n_embd": 16}, "shape"),
        ({"n_layer": 3}, "no tensor for h.2."),
    ],
)
def test_another_config_is_refused(series, other, message):
    model = transformers.GPT2Model(transformers.GPT2Config(**SIZES | other))
    with pytest.raises(InputError, match=f"{message}.*check that config belongs to this series"):
        saturation(series, config=model, texts=TEXT)


def test_another_architecture_is_refused(series):
    with pytest.raises(InputError, match="none of the model's parameters"):
        saturation(series, config=transformers.BertModel(tiny_config("bert")), texts=TEXT)


def test_the_table_the_figure_and_the_sentences(series, config):
    result = normgrowth.saturation(series, TEXT, config=transformers.GPT2Model(config))
    records, out = result.records, io.StringIO()
    show(result, Console(file=out, width=120))
    text = out.getvalue()
    assert "4 checkpoints" in text
    assert f"{records.series('saturation')[1][-1]:.3f}" in text
    assert "From step 0 to 60 the norm grew by a factor of 1." in text
    left, right, *_ = result.plot().axes
    assert left.get_xlabel() == "training step"
    for number, name in enumerate(("layer.0", "layer.1")):
        expected = records.series("saturation", level="layer", name=name)[1]
        assert left.lines[number].get_ydata() == pytest.approx(expected)
        norms = records.series("norm", level="layer", name=name)[1]
        assert right.lines[3 * number].get_xdata() == pytest.approx(norms)
    with pytest.raises(InputError, match="no saturation of a series"):
        draw_levels(replace(result, records=trace(series).records))


def test_rank_correlation_is_spearmans(rng):
    x = rng.integers(0, 5, 30).astype(float)
    y = x + rng.standard_normal(30)
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y)[0])
    assert np.isnan(rank_correlation(np.ones(5), y[:5]))


def test_figures_of_the_records_have_the_profile_too(series, tmp_path, capsys):
    command = [
        "saturation",
        str(series),
        "--config",
        str(series / "config"),
        "--text",
        str(series / "text.txt"),
    ]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "figures" / "saturation_levels.png").is_file()
    assert main(["plot", str(tmp_path / "out"), "-o", str(tmp_path / "figures"), "--formats", "svg"]) == 0
    assert "saturation_levels.svg" in capsys.readouterr().out


def test_other_tokens_are_another_question(series, config, tmp_path):
    """The same text through another tokenizer must not get the old answer."""

    class Letters:
        def __init__(self, shift):
            self.shift, self.pad_token_id = shift, 0

        def __call__(self, line, truncation, max_length):
            return {"input_ids": [self.shift + ord(letter) % 50 for letter in line][:max_length]}

    model = transformers.GPT2Model(config)
    options = {"out": tmp_path, "exact": False}
    one = saturation(series, config=model, texts=TEXT, tokenizer=Letters(1), **options)
    with pytest.raises(FolderMismatch):
        saturation(series, config=model, texts=TEXT, tokenizer=Letters(100), **options)
    assert same(Records.read(tmp_path), one)
    other = saturation(series, config=model, texts=TEXT, tokenizer=Letters(100), overwrite=True, **options)
    assert not same(one, other)
    assert same(other, saturation(series, config=model, texts=TEXT, tokenizer=Letters(100), exact=False))


def test_buffers_that_are_stored_are_copied_too(tmp_path):
    class Shifted(torch.nn.Module):
        def __init__(self, shift):
            super().__init__()
            self.map = torch.nn.Linear(4, 4)
            self.register_buffer("shift", torch.full((4,), shift))

    stored = Shifted(2.0)
    save_file(stored.state_dict(), tmp_path / "step_0.safetensors")
    model = Shifted(0.0)
    assert copy_weights(open_source(tmp_path).entries[0].open(), model) == []
    assert torch.equal(model.shift, stored.shift)
    assert torch.equal(model.map.weight, stored.map.weight)


def test_a_result_is_loaded_as_it_was(series, config, tmp_path):
    model = transformers.GPT2Model(config)
    result = normgrowth.saturation(series, TEXT, config=model, out=tmp_path)
    again = load(tmp_path)
    assert isinstance(again, Saturation)
    assert again.steps == result.steps == tuple(STEPS)
    assert again.models == result.models
    assert again.selection == result.selection
    assert again.selection.include == "blocks"
    assert again.counted == result.counted
    assert again.config == "GPT2Model"
    assert str(again) == str(result)
    with pytest.raises(InputError):
        normgrowth.saturation(series, TEXT, config=model, random_init=1)
