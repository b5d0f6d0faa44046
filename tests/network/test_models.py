"""Models by name: what loads, what is said about it, and what must not run."""

import json
import os
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import tiny_config
from torch import nn

import normgrowth
from normgrowth.errors import InputError
from normgrowth.network.inputs.default_inputs import default_inputs
from normgrowth.network.models.load import NO_TOKENIZER, generic, load_model, minilm_folder

pytest.importorskip("transformers")


@pytest.fixture
def alone(tmp_path):
    """A folder with a config and nothing else."""
    tiny_config("bert").save_pretrained(tmp_path / "alone")
    return tmp_path / "alone"


@pytest.fixture
def trained(tmp_path):
    """A folder with a config and weights."""
    model = load_model(save(tmp_path / "source"), seed=5).model
    model.save_pretrained(tmp_path / "trained")
    return tmp_path / "trained"


def save(folder, name="bert", **changes):
    folder.mkdir(exist_ok=True)
    content = {**json.loads(tiny_config(name).to_json_string()), **changes}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_config_alone_gives_random_weights_from_the_seed(alone):
    state = torch.random.get_rng_state()
    one, again, other = load_model(alone), load_model(alone / "config.json"), load_model(alone, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert same(one.model, again.model)
    assert not same(one.model, other.model)
    assert one.random
    assert "random, seed 0" in one.notes[0]
    assert not one.model.training
    assert one.tokenizer is None
    assert {p.dtype for p in one.model.parameters()} == {torch.float32}
    assert {p.dtype for p in load_model(alone, dtype="float64").model.parameters()} == {torch.float64}


def test_a_folder_with_weights_is_loaded_without_a_word(trained, tmp_path):
    loaded = load_model(trained)
    assert same(loaded.model, load_model(tmp_path / "source", seed=5).model)
    assert not loaded.random
    assert loaded.notes == [NO_TOKENIZER]
    assert load_model(str(trained), attention="eager").model.config._attn_implementation == "eager"


def test_results_of_a_checkpoint_have_its_step(trained):
    """The number in the name of its folder, or the step in the Trainer's state."""
    folder = trained.rename(trained.parent / "checkpoint-200")
    assert load_model(folder).step == 200
    options = {"exact": False, "sentences": 2}
    found = normgrowth.saturation(folder, ["a cat", "sat on a mat"], c=[10], **options)
    assert found.matrix("saturation", scale=10).steps.tolist() == [200]
    heads = normgrowth.heads(folder, ["a cat", "sat on a mat"], **options)
    assert heads.matrix("entropy_share").steps.tolist() == [200]
    count = sum(len(one.kinds) for one in heads.models.values())
    assert repr(heads).startswith(f"Heads({folder}, {count} heads: ")
    (folder / "trainer_state.json").write_text('{"global_step": 150}')
    assert load_model(folder).step == 150


def test_a_series_of_checkpoints_is_named_as_one(trained):
    for step in (20, 100):
        shutil.copytree(trained, trained.parent / "series" / f"checkpoint-{step}")
    series = trained.parent / "series"
    with pytest.raises(InputError) as refused:
        load_model(series)
    assert f"choose one, such as {series / 'checkpoint-100'}, or" in str(refused.value)
    assert f"saturation {series} --config {series / 'checkpoint-20' / 'config.json'}`" in str(refused.value)


def test_the_lack_of_a_tokenizer_is_the_first_note(trained):
    path = trained / "model.safetensors"
    weights = {name: value for name, value in load_file(path).items() if not name.startswith("pooler")}
    save_file(weights, path, metadata={"format": "pt"})
    assert [note == NO_TOKENIZER for note in load_model(trained).notes] == [True, False]
    assert "copy the tokenizer's files" in NO_TOKENIZER


def test_a_module_is_returned_as_it_is():
    model = nn.Linear(2, 2)
    assert load_model(model).model is model


def test_weights_that_the_checkpoint_lacks_are_said(trained):
    path = trained / "model.safetensors"
    weights = {name: value for name, value in load_file(path).items() if not name.startswith("pooler")}
    save_file(weights, path, metadata={"format": "pt"})
    (note,) = (note for note in load_model(trained).notes if note != NO_TOKENIZER)
    assert "random with seed 0: pooler.dense.bias, pooler.dense.weight" in note
    assert same(load_model(trained).model, load_model(trained).model)
    save_file({"nothing": torch.ones(2)}, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match="none of the model's parameters"):
        load_model(trained)


def test_a_pickle_of_tensors_loads_and_a_hostile_one_does_not_run(alone, tmp_path):
    model = load_model(alone).model
    torch.save(model.state_dict(), alone / "pytorch_model.bin")
    loaded = load_model(alone, seed=9)
    assert same(loaded.model, model)
    assert not loaded.random

    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'it-ran'}",)

    torch.save({**model.state_dict(), "x": Hostile()}, alone / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickle contains more than tensors and was not loaded"):
        load_model(alone)
    assert not (tmp_path / "it-ran").exists()


def test_code_of_a_repository_does_not_run(tmp_path):
    folder = save(
        tmp_path / "x", model_type="unheard", auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"}
    )
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')")
    with pytest.raises(InputError, match=r"needs code from its repository.*pass the module"):
        load_model(folder)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_that_a_config_names_is_not_fetched(tmp_path, key):
    loaded = load_model(save(tmp_path / "x", **{key: "evil/kernel"}))
    assert loaded.model.config._attn_implementation in ("sdpa", "eager")


def unknown(folder):
    return save(
        folder, model_type="unheard"
    ), "transformers .* does not know this architecture.*pass the module"


def not_json(folder):
    (save(folder) / "config.json").write_text("{nothing")
    return folder, "not readable as JSON"


def no_config(folder):
    (save(folder) / "config.json").unlink()
    return folder, "no config.json"


def gone(folder):
    return folder / "gone" / "deeper", "no such folder or file"


def weights_alone(folder):
    path = save(folder) / "x.safetensors"
    path.write_bytes(b"")
    return path, "a folder or a config.json"


def weights_by_another_name(folder):
    (save(folder) / "model.ckpt").write_bytes(b"")
    return folder, "cannot read model.ckpt"


def nothing_fits(folder):
    return save(folder, hidden_size=33), r"33.*multiple|multiple.*33|hidden"


def truncated(folder):
    (save(folder) / "model.safetensors").write_bytes(b"\0" * 9)
    return folder, "header|deserializ"


@pytest.mark.parametrize(
    "bad",
    [unknown, not_json, no_config, gone, weights_alone, weights_by_another_name, nothing_fits, truncated],
    ids=lambda f: f.__name__,
)
def test_bad_models_are_one_line_that_names_them(tmp_path, bad):
    source, reason = bad(tmp_path / "model")
    with pytest.raises(InputError, match=reason) as caught:
        load_model(source)
    assert str(source) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nan_is_named(trained):
    weights = load_file(trained / "model.safetensors")
    weights["pooler.dense.bias"][3] = torch.nan
    save_file(weights, trained / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"pooler\.dense\.bias holds NaN"):
        load_model(trained)


def test_without_a_hub_the_way_out_is_said(monkeypatch):
    import transformers

    def unreachable(*_, **options):
        assert options["trust_remote_code"] is False
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files\nsee offline mode")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(InputError, match=r"^org/name: the hub cannot be reached; pass a local folder"):
        load_model("org/name")


def test_without_transformers_the_way_out_is_said(monkeypatch, alone):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="pip install transformers"):
        load_model(alone)


def test_a_dtype_must_be_one(alone):
    with pytest.raises(InputError, match=r"dtype must be .*, got int8"):
        load_model(alone, dtype="int8")


def test_generic_moves_constant_parameters_and_no_others(alone):
    model, before = load_model(alone).model, load_model(alone).model.state_dict()
    changed = generic(model, seed=3)
    assert any(name.endswith("LayerNorm.weight") for name in changed)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) != (name in changed)
    assert not any(bool((p == p.flatten()[0]).all()) for p in model.parameters())


@pytest.mark.slow
def test_the_trained_minilm():
    try:
        folder = minilm_folder()
    except InputError as error:
        pytest.skip(str(error))
    loaded = load_model("minilm")
    assert (folder / "model.safetensors").is_file()
    assert loaded.notes == []
    assert not loaded.random
    inputs = default_inputs(loaded)
    assert inputs.tensors["input_ids"][:, 0].unique().tolist() == [101]  # [CLS]
    assert loaded.model(**inputs.tensors).last_hidden_state.shape == (4, 24, 384)
