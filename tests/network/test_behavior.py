"""What language models predict, soft and saturated, against computations in float64 with other code."""

import copy
import json

import numpy as np
import pytest
import torch
import transformers
from tiny_configs import tiny_config
from torch import nn

import normgrowth
from normgrowth.cli.main import main
from normgrowth.errors import InputError
from normgrowth.network.behavior.predictions import interval
from normgrowth.network.inputs.formal_languages import legal_mask
from normgrowth.network.models.encoder_folder import END, UNKNOWN, Words, write
from normgrowth.network.models.encoders import EncoderConfig, LanguageModel
from normgrowth.network.models.load import load_model

TEXT = ["one two three four five six", "seven eight nine two", "one three five", "two two one"]
C = 30.0


def gpt2():
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(tiny_config("gpt2")).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def rows_of(model):
    from normgrowth.network.inputs.tokenized_text import read_rows

    return [torch.tensor(row["input_ids"]) for row in read_rows(model, TEXT).rows]


def times(model, c):
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(c)
    return scaled


def find(result, network, c=None):
    (one,) = [one for one in result.networks if (one.network, one.c) == (network, c)]
    return one


def by_hand(soft, other, rows, ends=None):
    """accuracy, agreement and loss over all tokens but the first of a sentence, a sentence at a time."""
    right, same, loss, count = 0, 0, 0.0, 0
    with torch.no_grad():
        for row in rows:
            targets = row[1:] if ends is None else torch.cat([row[1:], torch.tensor([ends])])
            a, b = (net(row[None])[0][0][: len(targets)] for net in (soft, other))
            right += int((b.argmax(-1) == targets).sum())
            same += int((a.argmax(-1) == b.argmax(-1)).sum())
            loss -= float(b.log_softmax(-1)[torch.arange(len(targets)), targets].sum())
            count += len(targets)
    return right / count, same / count, loss / count, count


def test_a_causal_model():
    model = gpt2()
    rows = rows_of(model)
    result = normgrowth.behavior(model, TEXT, c=(C, 1e5), random_init=0)
    for network, c, other in (("soft", None, model), ("scaled", C, times(model, C))):
        accuracy, agreement, loss, count = by_hand(model, other, rows)
        one = find(result, network, c)
        assert one.accuracy.value == pytest.approx(accuracy, abs=1e-12)
        assert one.agreement.value == pytest.approx(agreement, abs=1e-12)
        assert one.loss.value == pytest.approx(loss, abs=1e-9)
    assert count == sum(len(row) - 1 for row in rows)
    assert [one.network for one in result.networks] == [
        "soft",
        "hard_attention",
        "scaled",
        "scaled",
        "saturated",
    ]
    assert find(result, "soft").agreement.value == 1
    # Growing weights lead to the limit.
    saturated, far = find(result, "saturated"), find(result, "scaled", 1e5)
    assert saturated.loss is None
    assert (saturated.accuracy.value, saturated.agreement.value) == (far.accuracy.value, far.agreement.value)
    (known,) = result.models.values()
    assert (known.text.tokens, known.text.sentences) == (count, len(TEXT))


def test_margins_are_those_of_sorted_logits():
    """The lead of the right token over the best other one, and ‖θ‖ over all stored numbers, in numpy."""
    model = gpt2()
    (found,) = normgrowth.behavior(model, TEXT, c=(), random_init=0).margins
    own = []
    for row in rows_of(model):
        with torch.no_grad():
            logits = model(row[None]).logits[0, :-1].numpy()
        own += [
            place[token] - np.sort(np.delete(place, token))[-1]
            for place, token in zip(logits, row[1:].tolist(), strict=True)
        ]
    assert found.median == pytest.approx(np.median(own), rel=1e-12)
    assert found.least == pytest.approx(min(own), rel=1e-12)
    norm = np.linalg.norm(np.concatenate([one.detach().numpy().ravel() for one in model.parameters()]))
    assert found.normalized_median == pytest.approx(np.median(own) / norm**found.degree, rel=1e-9)
    assert found.normalized_least == pytest.approx(min(own) / norm**found.degree, rel=1e-9)
    assert np.isnan(normgrowth.behavior(model, TEXT, c=(), exact=False, random_init=0).margins[0].degree)


def test_a_normalized_margin_does_not_grow_with_the_weights():
    """Where the network is homogeneous, which it is at large c: margins grow as cᵏ, normalized ones stay."""
    model = gpt2()
    small, large = (
        normgrowth.behavior(times(model, c), TEXT, c=(), hard_attention=False, random_init=0).margins[0]
        for c in (1e4, 1e5)
    )
    assert small.degree == large.degree == 2  # the last norm's gains, and the tied head
    assert large.least / small.least == pytest.approx(10**small.degree, rel=1e-3)
    assert large.normalized_least == pytest.approx(small.normalized_least, rel=1e-3)


def test_hard_attention(monkeypatch):
    """The weights as they are, and scores a million times as large."""
    model = gpt2()
    model.set_attn_implementation("eager")
    result = normgrowth.behavior(model, TEXT, c=(), exact=False, random_init=0)
    softmax = nn.functional.softmax
    sharp = copy.deepcopy(model)
    rows = rows_of(model)
    found = []
    with torch.no_grad():
        for row in rows:
            own = model(row[None]).logits[0, :-1]
            with monkeypatch.context() as patch:
                patch.setattr(
                    nn.functional,
                    "softmax",
                    lambda s, dim, dtype=None: softmax((s * 1e9).clamp(min=torch.finfo(s.dtype).min), dim),
                )
                hard = sharp(row[None]).logits[0, :-1]
            loss = -hard.log_softmax(-1)[torch.arange(len(row) - 1), row[1:]]
            found += [
                (a, b)
                for a, b in zip((own.argmax(-1) == hard.argmax(-1)).tolist(), loss.tolist(), strict=True)
            ]
    one = find(result, "hard_attention")
    assert one.agreement.value == pytest.approx(np.mean([a for a, _ in found]), abs=1e-12)
    assert one.loss.value == pytest.approx(np.mean([b for _, b in found]), abs=1e-6)


class Tokens:
    """A tokenizer with a mask."""

    mask_token_id, all_special_ids, pad_token_id, unk_token_id = 4, [0, 1, 2, 3, 4], 0, 3

    def __call__(self, line, truncation=False, max_length=None):
        words = {word: 5 + i for i, word in enumerate(sorted({w for text in TEXT for w in text.split()}))}
        return {"input_ids": [1, *(words[word] for word in line.split()), 2][:max_length]}


def test_a_masked_model():
    """All tokens but special ones masked: the input is the same mask everywhere, so by hand it is one pass each."""
    torch.manual_seed(2)
    model = transformers.BertForMaskedLM(tiny_config("bert")).double().eval()
    result = normgrowth.behavior(model, TEXT, tokenizer=Tokens(), masked_share=1.0, c=(C,), random_init=1)
    assert set(result.objective.values()) == {"masked"}
    rows = [torch.tensor(Tokens()(line)["input_ids"]) for line in TEXT]
    right, loss, count = 0, 0.0, 0
    scaled = times(model, C)
    with torch.no_grad():
        for row in rows:
            masked = row.clone()
            masked[1:-1] = 4
            logits = scaled(masked[None]).logits[0, 1:-1]
            right += int((logits.argmax(-1) == row[1:-1]).sum())
            loss -= float(logits.log_softmax(-1)[torch.arange(len(row) - 2), row[1:-1]].sum())
            count += len(row) - 2
    one = find(result, "scaled", C)
    assert one.accuracy.value == pytest.approx(right / count, abs=1e-12)
    assert one.loss.value == pytest.approx(loss / count, rel=1e-9)
    assert 0 <= one.accuracy.random <= 1
    few = normgrowth.behavior(model, TEXT, tokenizer=Tokens(), c=(), exact=False, random_init=0)
    assert next(iter(few.models.values())).text.tokens == len(TEXT)  # 15 % of so few: one of each
    with pytest.raises(InputError, match="no mask token"):
        normgrowth.behavior(model, TEXT)


def stored(folder, *, tied=False, words=("a", "b")):
    torch.manual_seed(3)
    vocabulary = [END, UNKNOWN, *words]
    config = EncoderConfig(
        vocabulary=len(vocabulary), max_length=32, width=16, layers=2, heads=2, feedforward=24
    )
    model = LanguageModel(config, tied=tied)
    write(folder, model, vocabulary)
    return model.double().eval(), Words(vocabulary)


@pytest.mark.parametrize("tied", [False, True])
def test_our_own_language_models_predict_the_end(tmp_path, tied):
    model, words = stored(tmp_path, tied=tied)
    text = ["a b a b", "a a b b", "b a"]
    result = normgrowth.behavior(tmp_path, text, c=(C,), dtype="float64", random_init=2, seed=5)
    rows = [torch.tensor(words(line)["input_ids"]) for line in text]

    def logits(network):
        return lambda ids: (network(ids),)

    for network, c, other in (("soft", None, model), ("scaled", C, times(model, C))):
        accuracy, agreement, loss, count = by_hand(logits(model), logits(other), rows, ends=words.ids[END])
        one = find(result, network, c)
        assert one.accuracy.value == pytest.approx(accuracy, abs=1e-12)
        assert one.agreement.value == pytest.approx(agreement, abs=1e-12)
        assert one.loss.value == pytest.approx(loss, rel=1e-6)
        assert np.isfinite(one.accuracy.random)
    assert count == 13
    loaded = load_model(tmp_path, head=True).model
    assert torch.equal(loaded.head.weight, model.head.weight.float())
    assert (loaded.head.weight is loaded.encoder.token_embedding.weight) == tied


def test_legality_of_a_formal_language(tmp_path):
    model, words = stored(tmp_path)
    text = ["a b", "a a b b", "a a a b b b"]
    result = normgrowth.behavior(tmp_path, text, language="anbn", longest=8, c=(), random_init=0)
    legal, count = 0, 0
    for line in text:
        ids = torch.tensor([words(line)["input_ids"]])
        first = model.float()(ids)[0].argmax(-1).tolist()
        mask = legal_mask("anbn", line.split(), 8)
        symbols = ["a", "b", END]
        legal += sum(
            words.words[token] in symbols and mask[i][symbols.index(words.words[token])]
            for i, token in enumerate(first)
        )
        count += len(first)
    assert find(result, "soft").legal_share.value == pytest.approx(legal / count, abs=1e-12)
    drawn = normgrowth.behavior(tmp_path, language="anbn", longest=6, sentences=4, c=(), random_init=0)
    assert next(iter(drawn.models.values())).text.sentences == 4
    with pytest.raises(InputError, match="does not know its symbol"):
        normgrowth.behavior(tmp_path, language="dyck2")


def test_intervals_are_those_of_a_bootstrap_by_hand():
    """Sentences drawn one by one; and an interval of equal sentences has no width."""
    source = np.random.default_rng(0)
    tokens = source.integers(1, 30, 60).astype(float)
    sums = source.binomial(tokens.astype(int), 0.4).astype(float)
    low, high = interval(sums, tokens, 4000, 0.9, seed=1)
    means = []
    for _ in range(4000):
        drawn = source.integers(0, 60, 60)
        means.append(sums[drawn].sum() / tokens[drawn].sum())
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.05, 0.95])), abs=0.005)
    assert interval(tokens, tokens, 50, 0.95, seed=0) == (1.0, 1.0)


def test_overflow_is_nan_and_said():
    model = gpt2().float()
    result = normgrowth.behavior(model, TEXT, c=(1e30,), exact=False, random_init=0)
    one = find(result, "scaled", 1e30)
    assert np.isnan(one.accuracy.value)
    assert np.isnan(one.loss.value)
    assert any("c = 1e+30: logits overflow" in note for note in result.notes)


def test_a_saved_result_comes_back_and_is_shown(tmp_path):
    model = gpt2()
    result = normgrowth.behavior(model, TEXT, c=(C,), bootstrap=50, out=tmp_path / "out")
    again = normgrowth.load(tmp_path / "out")
    assert isinstance(again, normgrowth.Behavior)
    assert again.networks == result.networks
    assert again.margins == result.margins
    assert "normalized margin" in str(again)
    assert (again.c, again.objective) == ((C,), {"GPT2LMHeadModel": "causal"})
    one = find(again, "saturated")
    assert one.agreement.low <= one.agreement.value <= one.agreement.high
    text = str(again)
    assert "saturated" in text
    assert "hard attention" in text
    assert again.plot().axes
    assert again.matrix("accuracy", by="model").names == [
        "soft",
        "hard_attention",
        "saturated",
    ]


def test_the_command(tmp_path, capsys):
    stored(tmp_path / "model")
    (tmp_path / "text.txt").write_text("a b a\nb b a\n")
    options = ["--text", str(tmp_path / "text.txt"), "--c", "2,10", "--bootstrap", "20"]
    assert main(["behavior", str(tmp_path / "model"), *options, "-o", str(tmp_path / "out")]) == 0
    assert "same top" in capsys.readouterr().out
    assert {path.suffix for path in (tmp_path / "out" / "figures").iterdir()} == {".png", ".svg", ".pdf"}
    assert main(["behavior", str(tmp_path / "model"), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "behavior"
    assert found["c"] == [2.0, 10.0]


def test_what_is_no_language_model_is_refused(tmp_path):
    tiny_config("t5").save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="not a causal or masked language model"):
        normgrowth.behavior(tmp_path / "t5", TEXT)
    transformers.GPT2Model(tiny_config("gpt2")).save_pretrained(tmp_path / "gpt2")
    tiny_config("vit").save_pretrained(tmp_path / "vit")
    with pytest.raises(InputError):
        normgrowth.behavior(tmp_path / "vit", TEXT)
    transformers.BertModel(tiny_config("bert")).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match=r"no language-model head .* saturation, heads and degrees work"):
        normgrowth.behavior(tmp_path / "bert", TEXT)
    with pytest.raises(InputError, match="no logits"):
        normgrowth.behavior(transformers.BertModel(tiny_config("bert")), TEXT)
    with pytest.raises(InputError, match="between 0 and 1"):
        normgrowth.behavior(gpt2(), TEXT, confidence=2)
