"""Our encoders in a folder: what goes in comes out, and what is wrong with a folder is said in a line."""

import json
from dataclasses import asdict

import pytest
import torch

import normgrowth
from normgrowth.errors import InputError
from normgrowth.network.models.encoder_folder import CONFIG, VOCABULARY, WEIGHTS, Words, load_weights, write
from normgrowth.network.models.encoders import EncoderConfig, LanguageModel
from normgrowth.network.models.load import load_model

pytestmark = pytest.mark.usefixtures("one_thread", "own_random_numbers")
WORDS = ["<eos>", "<unk>", *(f"w{i}" for i in range(18))]
SMALL = {"vocabulary": 20, "max_length": 9, "width": 12, "layers": 2, "heads": 3, "feedforward": 10}
IDS = torch.tensor([[0, 5, 3, 3, 8, 2, 2], [0, 7, 2, 9, 10, 4, 1]])


def stored(folder, tied=False, **options):
    model = LanguageModel(EncoderConfig(**SMALL, **options), tied=tied)
    write(folder, model, WORDS)
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"kind": "post_norm"}, {"kind": "usual_pre_norm", "final_norm": True}, {"leaking": True}]
)
def test_what_goes_in_comes_out(tmp_path, options, tied):
    model = stored(tmp_path, tied, **options)
    loaded = load_model(tmp_path)
    found = loaded.model(IDS)
    for mine, theirs in zip(found.hidden_states, model.encoder(IDS, return_states=True), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(found.last_hidden_state, found.hidden_states[-1])
    assert not loaded.random
    assert loaded.notes == []
    other = LanguageModel(model.config, tied=tied)
    load_weights(tmp_path, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"leaking": True}])
def test_padding_changes_nothing(tmp_path, options):
    """The mask is left out where it hides nothing that the causal one does not; that must not show."""
    model = stored(tmp_path, **options)
    readable = load_model(tmp_path, dtype="float64").model
    alone = readable(IDS[1:, :4]).last_hidden_state
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    torch.testing.assert_close(readable(IDS, mask).last_hidden_state[1:, :4], alone, rtol=0, atol=1e-12)
    left = torch.cat([IDS[1:, 4:], IDS[1:, :4]], 1)
    mask = torch.tensor([[0] * 3 + [1] * 4])
    torch.testing.assert_close(readable(left, mask).last_hidden_state[:, 3:], alone, rtol=0, atol=1e-12)
    assert model.config.causal == options.get("causal", True)


def test_every_measure_takes_it(tmp_path):
    stored(tmp_path)
    loaded = load_model(tmp_path)
    levels = normgrowth.saturation(loaded, ["w1 w2 w3", "w4 w9 nothing w7 w1"], random_init=1).records
    assert levels.where(level="model", quantity="evaluation_tokens").to_rows()[0]["value"] == 4 + 6
    assert normgrowth.degrees(loaded.model, {"input_ids": IDS}).outputs
    for step in (1, 2):
        stored(tmp_path / "series" / f"step-{step}")
    assert (normgrowth.trace(tmp_path / "series", lint=False).records.series("norm")[1] > 0).all()
    assert normgrowth.scaling(loaded.model, IDS, c=(10, 100)).curves[0].mean("cosine_saturated")[-1] > 0.9


def test_words():
    words = Words(WORDS)
    assert words("w0 w17 zebra")["input_ids"] == [0, 2, 19, 1]
    assert words("w0 w17 zebra", truncation=True, max_length=2)["input_ids"] == [0, 2]
    with pytest.raises(InputError, match="contains a word twice"):
        Words(["a", "b", "a"])
    with pytest.raises(InputError, match="'z' is not in the vocabulary of this model"):
        Words(["<eos>", "a"]).encode(["a", "z"])


def test_a_config_alone_is_random_from_the_seed(tmp_path):
    stored(tmp_path)
    one, two, other = (load_model(tmp_path / CONFIG, seed=seed) for seed in (1, 1, 2))
    assert one.random
    assert "random, seed 1" in one.notes[0]
    states = [loaded.model(IDS).last_hidden_state for loaded in (one, two, other)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 10**12}, "layers is 1000000000000"),
        ({"layers": 99}, "tensors are too few for 99 layers"),
        ({"layers": 3}, "does not match its config"),
        ({"width": 24}, "does not match its config"),
        ({"vocabulary": 21}, "20 words, but vocabulary in config.json is 21"),
        ({"kind": "sandwich"}, "kind: .*'sandwich'"),
        ({"heads": "3"}, "heads: expected an integer, got a string"),
        ({"layers": True}, "layers: expected an integer, got true or false"),
        ({"eps": [1]}, "eps: expected a number, got a list"),
        ({"trust_remote_code": True}, "unknown key trust_remote_code"),
    ],
)
def test_a_config_that_lies(tmp_path, change, says):
    model = stored(tmp_path)
    said = {"model_type": "normgrowth_encoder", **asdict(model.config), **change}
    (tmp_path / CONFIG).write_text(json.dumps(said))
    with pytest.raises(InputError, match=says):
        load_model(tmp_path)


def test_damaged_weights(tmp_path):
    model = stored(tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    for read in (load_model, lambda folder: load_weights(folder, model)):
        with pytest.raises(InputError, match=r"model\.safetensors: not readable"):
            read(tmp_path)
    with torch.no_grad():
        model.encoder.blocks[1].feedforward.inner.weight[0, 0] = torch.nan
    write(tmp_path, model, WORDS)
    with pytest.raises(InputError, match=r"blocks\.1\.feedforward\.inner\.weight holds NaN"):
        load_model(tmp_path)
    (tmp_path / VOCABULARY).unlink()
    write(tmp_path, stored(tmp_path), WORDS)
    (tmp_path / VOCABULARY).unlink()
    assert load_model(tmp_path).tokenizer is None


def test_a_config_without_what_an_encoder_needs(tmp_path):
    (tmp_path / CONFIG).write_text('{"model_type": "normgrowth_encoder", "layers": 2}')
    with pytest.raises(InputError, match=r"config\.json: .*`vocabulary`"):
        load_model(tmp_path)
