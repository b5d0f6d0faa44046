"""Saturation of either stack of an encoder-decoder model, and in the form of the authors' script."""

import copy

import numpy as np
import pytest
import torch
import transformers
from tiny_configs import BLOCKS, tiny_config

import normgrowth
from normgrowth.errors import InputError

TEXT = ["one two three four five six", "seven eight nine", "one three five"]
C = 64.0


def t5():
    torch.manual_seed(3)
    return transformers.T5Model(tiny_config("t5")).double().eval()


def bart():
    torch.manual_seed(4)
    sizes = dict(encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4)
    widths = dict(
        d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=99, max_position_embeddings=64
    )
    return transformers.BartModel(transformers.BartConfig(**sizes, **widths)).double().eval()


def xlnet():
    torch.manual_seed(5)
    config = transformers.XLNetConfig(vocab_size=99, d_model=32, n_layer=BLOCKS, n_head=4, d_inner=48)
    return transformers.XLNetModel(config).double().eval()


def times(model, c):
    """A copy with every parameter multiplied, each tied one once."""
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(c)
    return scaled


def mean_cosines(own, other):
    """Mean over all tokens of all sentences, by layer; own, other: of each sentence the list of its states."""
    cosines = [
        torch.stack([torch.cosine_similarity(a[0], b[0], dim=-1) for a, b in zip(one, two, strict=True)])
        for one, two in zip(own, other, strict=True)
    ]
    return torch.cat(cosines, 1).mean(1).detach().numpy()


def levels(result, scale=None, quantity="saturation"):
    rows = result.records.where(quantity=quantity, scale=scale, level="layer")
    return np.array(rows.table["value"].to_pylist())


@pytest.mark.parametrize("make", [t5, bart])
@pytest.mark.parametrize("how", ["shifted", "start"])
def test_levels_of_the_decoder(make, how):
    """In float64, from decoder_hidden_states of a copy with scaled weights, a sentence at a time."""
    model = make()
    start = getattr(model.config, "decoder_start_token_id", 0)  # T5 does not say, and begins with 0
    found = normgrowth.saturation(
        model, TEXT, c=(C, 1e4), exact=make is t5, stack="decoder", decoder_input=how
    )
    given = normgrowth.saturation(model, TEXT, c=(C,), exact=False)
    assert (found.stack, given.stack) == ("decoder", "encoder")
    ids = [one["input_ids"] for one in read(model)]

    def states(network):
        of_decoder = []
        for row in ids:
            decoder = [start] if how == "start" else [start, *row[:-1]]
            output = network(
                input_ids=torch.tensor([row]),
                decoder_input_ids=torch.tensor([decoder]),
                output_hidden_states=True,
            )
            of_decoder.append(output.decoder_hidden_states)
        return of_decoder

    own = states(model)
    for c in (C, 1e4):
        assert levels(found, c) == pytest.approx(mean_cosines(own, states(times(model, c))), abs=1e-9)
    names = found.records.where(level="layer").distinct("name")
    assert names == ["embeddings", *(f"decoder.{i}" for i in range(len(own[0]) - 1))]
    if make is t5:  # the exact limit is where growing weights lead
        assert levels(found) == pytest.approx(levels(found, 1e4), abs=1e-3)


def read(model):
    from normgrowth.network.inputs.tokenized_text import read_rows

    return read_rows(model, TEXT).rows


def test_padding_in_the_decoder_changes_nothing():
    model = t5()
    options = {"c": (C,), "stack": "decoder"}
    packed = normgrowth.saturation(model, TEXT, **options)
    alone = normgrowth.saturation(model, TEXT, batch_tokens=1, **options)
    for scale in (None, C):
        assert levels(packed, scale) == pytest.approx(levels(alone, scale), abs=1e-9)


def test_tokens_of_the_decoder_can_be_given():
    model = t5()
    ids, decoder = torch.tensor([[5, 6, 7]]), torch.tensor([[0, 9, 8, 7, 6]])
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    inputs = {"input_ids": ids, "decoder_input_ids": decoder, "decoder_attention_mask": mask}
    found = normgrowth.saturation(model, inputs=inputs, c=(C,), exact=False, stack="decoder")
    one, two = (
        [state[:, :4] for state in network(**inputs, output_hidden_states=True).decoder_hidden_states]
        for network in (model, times(model, C))
    )
    assert levels(found, C) == pytest.approx(mean_cosines([one], [two]), abs=1e-9)


def test_the_published_form_of_xlnet_has_no_last_layer():
    """What it keeps for the next segment is the input of every layer; random baselines have all layers."""
    model = xlnet()
    found = normgrowth.saturation(model, TEXT, c=(C,), as_published=True, random_init=1)
    usual = normgrowth.saturation(model, TEXT, c=(C,), exact=False)
    assert levels(found, C) == pytest.approx(levels(usual, C)[:-1], abs=1e-9)
    assert len(levels(found, C, "saturation_random")) == BLOCKS + 1
    (own, baseline) = found.curves
    assert (len(own.layers), len(baseline.layers)) == (BLOCKS, BLOCKS + 1)
    assert baseline.values[0] < 1 - 1e-3  # dropout: not even the embeddings agree
    assert not found.exact
    assert found.as_published


def test_the_published_form_of_t5_reads_the_start_token():
    model = t5()
    found = normgrowth.saturation(model, TEXT, c=(C,), as_published=True)
    usual = normgrowth.saturation(model, TEXT, c=(C,), exact=False, stack="decoder", decoder_input="start")
    assert levels(found, C) == pytest.approx(levels(usual, C), abs=1e-12)
    assert levels(found, C)[0] == pytest.approx(1)


def test_random_weights_as_published_have_dropout(tmp_path):
    """A config alone has random weights; the same seed gives the same masks, and no random state changes."""
    tiny_config("t5").save_pretrained(tmp_path)
    before = torch.random.get_rng_state()
    first, again = (normgrowth.saturation(tmp_path, TEXT, c=(C,), as_published=True) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert levels(first, C).tolist() == levels(again, C).tolist()
    assert levels(first, C)[0] < 1 - 1e-3
    assert any("dropout" in note for note in first.notes)


def test_refusals():
    bert = transformers.BertModel(tiny_config("bert"))
    with pytest.raises(InputError, match="not an encoder-decoder model"):
        normgrowth.saturation(bert, TEXT, stack="decoder")
    with pytest.raises(InputError, match="pass a value of c"):
        normgrowth.saturation(bert, TEXT, c=(), as_published=True)
    with pytest.raises(InputError, match="do not pass states="):
        normgrowth.saturation(bert, TEXT, states=lambda _model, _batch: [], as_published=True)
