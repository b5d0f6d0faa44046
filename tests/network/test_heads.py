"""Heads against a slow reference: one sentence, one layer, one head, one query at a time, in float64."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_configs import BLOCKS, tiny_config
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import normgrowth
from normgrowth.errors import FolderMismatch, InputError
from normgrowth.limit.saturated import saturated
from normgrowth.network.attention_capture import BLOCK, WHOLE, seen, seen_weights
from normgrowth.network.heads.measurement import HARD_QUERIES
from normgrowth.network.heads.passes import wide_copy
from normgrowth.network.heads.patterns import patterns
from normgrowth.network.heads.result import Heads, kind, kinds
from normgrowth.network.heads.statistics import Tally, add_soft
from normgrowth.network.inputs.tokenized_text import read_rows
from normgrowth.network.models.encoder_folder import StoredEncoder, Words
from normgrowth.network.models.encoders import Encoder, EncoderConfig
from normgrowth.network.models.load import LoadedModel, load_model
from normgrowth.results import load

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = [
    "the cat sat on the mat",
    "dogs bark",
    "one",
    "a cat and a dog are not the same as one mat on a hill",
    "the hill is high",
]
VOCABULARY = ["<eos>", "<unk>", *sorted({word for line in TEXT for word in line.split()})]
TOLERANCE = 0.01
SOFT = [
    *("visible", "one_share", "visible_distance"),
    *("entropy", "entropy_share", "effective", "effective_2"),
    *("distance", "largest_share", "first_share", "previous_share"),
    *("hard_distance", "largest_logit", "gap", "hard_scale"),
]
HARD = [
    *("attended", "attended_share", "attended_spread", "attended_distance"),
    *("saturated_largest_share", "saturated_first_share", "saturated_previous_share", "saturated_distance"),
]


def encoder(seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    shape = {"width": 16, "layers": 2, "heads": 4, "feedforward": 24, "max_length": 90}
    return StoredEncoder(EncoderConfig(vocabulary=len(VOCABULARY), **(shape | options))).to(dtype).eval()


def loaded(model):
    return LoadedModel("tiny", model, Words(VOCABULARY))


def rows_of(text=TEXT):
    return [Words(VOCABULARY)(line)["input_ids"] for line in text]


def value(records, quantity, name="model"):
    (row,) = records.where(quantity=quantity, name=name).table.to_pylist()
    return row["value"]


def heads(*arguments, **options):
    return normgrowth.heads(*arguments, **options).records


def of_heads(records, quantity, scale=None):
    rows = records.where(quantity=quantity, level="head", scale=scale)
    return np.array(rows.table["value"].to_pylist())


def scores_by_hand(model, ids):
    """(layers, heads, queries, keys) of a paper_pre_norm or post_norm encoder: attention reads the stream itself."""
    with torch.no_grad():
        states = model(torch.tensor([ids])).hidden_states
    found = []
    for block, x in zip(model.blocks, states, strict=False):
        a, size = block.attention, x.shape[-1] // block.attention.heads
        q, k = (linear(x[0]).detach().numpy() for linear in (a.query, a.key))
        layer = []
        for h in range(a.heads):
            part = slice(h * size, (h + 1) * size)
            s = q[:, part] @ k[:, part].T / math.sqrt(size)
            length = len(ids)
            if a.leaking:
                s = s * np.tril(np.ones((length, length)))
            elif a.causal:
                s = np.where(np.tril(np.ones((length, length))) > 0, s, -np.inf)
            layer.append(s)
        found.append(layer)
    return np.array(found)


def softmax(s):
    e = np.exp(s - s.max())
    return e / e.sum()


def hardest(s, tolerance):
    """By bisection: the factor at which the largest weight is 1 − tolerance; none is enough in a tie."""
    if (s == s.max()).sum() > 1:
        return np.inf
    low, high = 0.0, 1e12
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - softmax(middle * s).max() > tolerance else (low, middle)
    return high


def reference(all_scores, limits=None):
    """all_scores: of each sentence (layers, heads, queries, keys). quantity -> (layers · heads,)"""
    layers, count = all_scores[0].shape[:2]
    found = {}
    for layer in range(layers):
        for head in range(count):
            lists = {}

            def note(name, one, lists=lists):
                lists.setdefault(name, []).append(one)

            for number, scores in enumerate(all_scores):
                for query, row in enumerate(scores[layer, head]):
                    places = np.flatnonzero(row > -np.inf)
                    if len(places) < 2:
                        continue
                    s = row[places]
                    a = softmax(s)
                    h = -sum(p * math.log(p) for p in a if p > 0)
                    note("visible", len(places))
                    note("one_share", 1 / len(places))
                    note("visible_distance", np.mean([abs(int(k) - query) for k in places]))
                    note("entropy", h)
                    note("entropy_share", h / math.log(len(places)))
                    note("effective", math.exp(h))
                    note("effective_2", 1 / sum(a**2))
                    note("distance", sum(a * abs(places - query)))
                    note("largest_share", max(a))
                    note("largest_logit", max(abs(s)))
                    note("gap", np.sort(s)[-1] - np.sort(s)[-2])
                    note("hard_scale", hardest(s, TOLERANCE))
                    note("hard_distance", 0.5 * np.abs(a - (s == s.max()) / (s == s.max()).sum()).sum())
                    if 0 in places:
                        note("first_share", a[list(places).index(0)])
                    if query - 1 in places:
                        note("previous_share", a[list(places).index(query - 1)])
                    if limits is not None:
                        w = limits[number][layer, head, query, places]
                        n = sum(w >= w.max() / 2)
                        note("attended", n)
                        note("attended_share", n / len(places))
                        near = [
                            abs(int(k) - query)
                            for k, one in zip(places, w, strict=True)
                            if one >= w.max() / 2
                        ]
                        note("attended_distance", sum(near) / len(near))
                        note("attended_spread", (n - 1) / (len(places) - 1))
                        note("saturated_largest_share", max(w))
                        note("saturated_distance", 0.5 * np.abs(w - a).sum())
                        if 0 in places:
                            note("saturated_first_share", w[list(places).index(0)])
                        if query - 1 in places:
                            note("saturated_previous_share", w[list(places).index(query - 1)])
            for name, values in lists.items():
                if name == "gap":
                    one = np.median(values)
                elif name == "hard_scale":
                    one = sorted(values)[math.ceil(HARD_QUERIES * len(values)) - 1]
                elif name == "largest_logit":
                    one = max(values)
                else:
                    one = np.mean(values)
                found.setdefault(name, []).append(one)
    return {name: np.array(values) for name, values in found.items()}


def limit_by_scaling(model, ids, c=1e4):
    """The weights at a large c, where there are no ties."""
    scaled = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(c)
    scores = scores_by_hand(scaled, ids)
    return (scores == scores.max(-1, keepdims=True)) * 1.0


@pytest.mark.parametrize(
    "options", [{}, {"kind": "post_norm"}, {"leaking": True}, {"causal": False}], ids=str
)
def test_every_quantity_is_that_of_a_slow_loop(options):
    model = encoder(**options)
    records = heads(loaded(model), TEXT)
    scores = [scores_by_hand(model, ids) for ids in rows_of()]
    hard = options.get("leaking") is None and options.get("kind") is None
    limits = [limit_by_scaling(model, ids) for ids in rows_of()] if hard else None
    for quantity, wanted in reference(scores, limits).items():
        assert of_heads(records, quantity) == pytest.approx(wanted, rel=1e-7, abs=1e-9), quantity
    assert set(records.where(level="head").distinct("quantity")) == {*SOFT, *HARD}
    assert records.where(level="head").distinct("name") == [
        f"layer.{layer}.head.{h}" for layer in range(2) for h in range(4)
    ]
    assert value(records, "evaluation_tokens") == sum(map(len, rows_of()))
    assert value(records, "evaluation_sentences") == len(TEXT)


def test_layers_and_the_model_are_made_of_heads():
    told = []
    records = heads(
        loaded(encoder()),
        TEXT,
        step=70,
        run="here",
        progress=lambda *passes: told.append(passes),
        batch_tokens=1,
    )
    assert told == [(i + 1, 10, "tiny") for i in range(10)]  # five sentences, the network and its limit
    assert records.distinct("step") == [70]
    assert records.distinct("run") == ["here"]
    for quantity in (*SOFT, *HARD):
        every = of_heads(records, quantity).reshape(2, 4)
        together = {"largest_logit": np.max, "gap": np.median, "hard_scale": np.median}.get(quantity, np.mean)
        for layer in range(2):
            assert value(records, quantity, f"layer.{layer}") == pytest.approx(together(every[layer]))
        assert value(records, quantity) == pytest.approx(together(every))
    (row,) = records.where(name="layer.1.head.2", quantity="gap").table.to_pylist()
    assert (row["layer"], row["role"], row["level"]) == (1, None, "head")


ARCHITECTURES = (
    *("bert", "gpt2", "t5", "llama", "mistral", "roberta", "bloom", "xlnet"),
    *("gemma2", "gemma3", "albert"),
)


def architecture(name):
    small = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99
    )
    ends = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    made = {
        "llama": lambda: transformers.LlamaConfig(**small, **ends, num_key_value_heads=2),
        "mistral": lambda: transformers.MistralConfig(
            **small, **ends, num_key_value_heads=2, sliding_window=4
        ),
        "roberta": lambda: transformers.RobertaConfig(**small, **ends, max_position_embeddings=64),
        "bloom": lambda: transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=99, **ends),
        "xlnet": lambda: transformers.XLNetConfig(d_model=32, n_layer=2, n_head=4, d_inner=64, vocab_size=99),
        "gemma2": lambda: transformers.Gemma2Config(**small, **ends, num_key_value_heads=2, head_dim=8),
        "gemma3": lambda: (
            transformers.Gemma3TextConfig(  # a layer that sees four tokens, and one that sees all
                **small,
                **ends,
                num_key_value_heads=2,
                head_dim=8,
                sliding_window=4,
                layer_types=["sliding_attention", "full_attention"],
            )
        ),
        "albert": lambda: transformers.AlbertConfig(**small, **ends, embedding_size=16),
    }
    config = made[name]() if name in made else tiny_config(name)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).double().eval()
    with torch.no_grad():  # larger than at the start of training, so that heads differ
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_transformers(name):
    """What transformers gives out as attentions, one sentence at a time; in the limit too, by its own eager code."""
    model = architecture(name)
    result = normgrowth.heads(model, TEXT)
    records = result.records
    part = model.get_encoder() if model.config.is_encoder_decoder else model
    eager = copy.deepcopy(part)
    if name not in ("bloom", "xlnet"):  # which know nothing else
        eager.set_attn_implementation("eager")
    scores, limits = [], []
    for row in read_rows(model, TEXT).rows:
        inputs = {"input_ids": torch.tensor([row["input_ids"]]), "output_attentions": True}
        with torch.no_grad():
            soft = eager(**inputs).attentions
        scores.append(torch.stack([a[0] for a in soft]).double().log().numpy())
        hard = saturated(eager, orders=3)(**inputs).attentions
        limits.append(torch.stack([a[0] for a in hard]).double().numpy())
    wanted = reference(scores, limits)
    slack = (
        1e-6 if name in ("llama", "mistral", "gemma2", "gemma3", "bloom") else 1e-8
    )  # these take softmax in float32
    for quantity in (*SOFT, *HARD):
        if quantity in ("largest_logit", "hard_scale", "gap"):  # their logarithms have lost the former
            continue
        assert of_heads(records, quantity) == pytest.approx(wanted[quantity], abs=30 * slack), quantity
    stack = "encoder" if name == "t5" else "layer"
    layers = BLOCKS if name in ("bert", "gpt2", "t5") else 2
    assert records.where(level="layer").distinct("name") == [f"{stack}.{i}" for i in range(layers)]
    assert bool(name == "t5") == any("encoder" in note for note in result.notes)


def test_everything_is_in_float64():
    """log n too, of which PyTorch makes float32 if n is a whole number."""
    model = encoder()
    found = of_heads(heads(loaded(model), TEXT, exact=False), "entropy_share")
    wanted = reference([scores_by_hand(model, ids) for ids in rows_of()])["entropy_share"]
    assert found == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", ["gemma3", "mistral", "llama"])
def test_padding_changes_nothing_in_transformers(name, padding):
    """In a sliding window padding may see nothing at all: eager attention in float64 gives NaN then, sdpa does not."""
    model = architecture(name)
    rows = [torch.randint(3, 99, (length,)).tolist() for length in (12, 7, 3)]
    alone = heads(model, inputs=[{"input_ids": torch.tensor([row])} for row in rows], exact=False)
    empty = [[0] * (12 - len(row)) for row in rows]
    real = [[1] * len(row) for row in rows]
    packed = {
        key: torch.tensor(
            [more + own if padding == "left" else own + more for own, more in zip(cells, empty, strict=True)]
        )
        for key, cells in (("input_ids", rows), ("attention_mask", real))
    }
    together = heads(model, inputs=packed, exact=False)
    for quantity in SOFT:
        wanted = of_heads(alone, quantity)
        assert of_heads(together, quantity) == pytest.approx(wanted, rel=1e-4, abs=1e-6), quantity


def test_padding_changes_nothing():
    for model in (encoder(), encoder(leaking=True), encoder(causal=False)):
        alone = heads(loaded(model), TEXT, batch_tokens=1)
        packed = heads(loaded(model), TEXT, batch_tokens=4096)
        ids = [row + [0] * (20 - len(row)) for row in rows_of()]
        mask = [[1] * len(row) + [0] * (20 - len(row)) for row in rows_of()]
        left = [[0] * (20 - len(row)) + row for row in rows_of()]
        given_right = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
        given_left = {"input_ids": torch.tensor(left), "attention_mask": torch.tensor(mask).flip(1)}
        for other in (packed, heads(model, inputs=[given_right]), heads(model, inputs=given_left)):
            assert other.table["value"].to_numpy() == pytest.approx(
                alone.table["value"].to_numpy(), rel=1e-7, abs=1e-9
            )


def test_heads_that_would_see_padding_get_none():
    class Deaf(transformers.BertModel):
        def forward(self, input_ids, attention_mask=None, **rest):
            return super().forward(input_ids=input_ids, **rest)

    torch.manual_seed(0)
    model = Deaf(tiny_config("bert")).double().eval()
    lines = ["a b c d e f g h i j", "a b c d e f g h i"]
    result = normgrowth.heads(model, lines)
    records = result.records
    assert "equal length" in result.notes[0]
    assert value(records, "visible") == pytest.approx((10 * 10 + 9 * 9) / 19)
    ids = torch.randint(3, 90, (2, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    with pytest.raises(InputError, match="attend to padding"):
        heads(model, inputs=[{"input_ids": ids, "attention_mask": mask}])


@pytest.mark.parametrize("kind_", ["paper_pre_norm", "usual_pre_norm", "post_norm"])
@pytest.mark.parametrize("leaking", [False, True])
def test_the_limit_and_a_large_scale_agree(kind_, leaking):
    model = encoder(kind=kind_, leaking=leaking, width=32)
    records = heads(loaded(model), TEXT, c=(1000, 1e5), window=20)
    for quantity in ("attended", "attended_share", "attended_spread", "attended_window"):
        exact = of_heads(records, quantity)
        assert of_heads(records, quantity, 1e5) == pytest.approx(exact, abs=1e-12)
        assert of_heads(records, quantity, 1000) == pytest.approx(exact, abs=0.2)  # not quite there
    far = of_heads(records, "attended_distance", 1e5)
    assert far == pytest.approx(of_heads(records, "attended_distance"), abs=1e-12)
    assert (of_heads(records, "attended") == 1).all() != leaking


def test_ties_among_equal_values_are_decided_too():
    """The leading order leaves them open and the output cannot show it, so `saturated` alone would stop there."""
    torch.manual_seed(0)
    small = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = transformers.AlbertModel(transformers.AlbertConfig(**small, embedding_size=16)).double().eval()
    plain = []
    batch = {"input_ids": torch.randint(3, 50, (3, 9))}
    limit = saturated(model)
    with seen_weights(model, lambda _, __, w: plain.append(w), plain.clear):
        limit(**batch)
    records = heads(model, inputs=[batch], c=(1000,))
    found = of_heads(records, "attended")
    assert found == pytest.approx(of_heads(records, "attended", 1000))
    assert limit.undecided > 0
    assert limit.used_orders == 1
    assert (torch.stack(plain) > 0).sum(-1).double().mean() > found.mean()


def test_the_limit_is_not_changed_by_looking():
    for model in (encoder(), architecture("llama"), architecture("mistral")):
        ids = torch.randint(3, 20, (2, 12))
        limit = saturated(model, orders=1)
        alone = limit(input_ids=ids).last_hidden_state
        with seen_weights(model, lambda *_: None, lambda: None):
            watched = saturated(model, orders=1)(input_ids=ids).last_hidden_state
        assert torch.allclose(alone.clone(), watched.clone(), rtol=1e-12, atol=1e-12)


def leaking_negative(heads_=2, negative=True):
    """Queries all alike and keys all their opposite (or zero): every score is negative (or zero)."""
    model = encoder(leaking=negative, layers=1, heads=heads_)
    attention = model.blocks[0].attention
    with torch.no_grad():
        for linear in (attention.query, attention.key):
            linear.weight.zero_()
            linear.bias.zero_()
        if negative:
            # Keys that differ, all in the half-space away from the query.
            size = 16 // heads_
            attention.query.bias[::size] = 1.0
            attention.key.bias[::size] = -1.0
            attention.key.weight[::size] = -1.0
            model.token_embedding.weight.abs_()
            model.position_embedding.weight.abs_()
    return model


def test_figure_3_in_its_published_form():
    """A leaking mask: negative scores lose against the zeros of the future, of which the last query has none."""
    wanted = (sum(range(1, 83)) + 1) / 83
    assert wanted == pytest.approx(41.012, abs=5e-4)
    records = heads(loaded(leaking_negative()), TEXT, window=83, c=(1000,))
    assert of_heads(records, "attended_window") == pytest.approx([wanted, wanted], abs=1e-12)
    assert of_heads(records, "attended_window", 1000) == pytest.approx([wanted, wanted], abs=1e-12)
    mean = heads(loaded(leaking_negative(negative=False)), TEXT, window=83)
    assert of_heads(mean, "attended_window") == pytest.approx([42.0, 42.0], abs=1e-12)
    assert of_heads(mean, "attended_spread") == pytest.approx([1.0, 1.0], abs=1e-12)
    assert of_heads(mean, "attended_share") == pytest.approx([1.0, 1.0], abs=1e-12)
    assert of_heads(mean, "attended_distance") == pytest.approx(of_heads(mean, "visible_distance"))
    assert np.isinf(of_heads(mean, "hard_scale")).all()
    assert of_heads(mean, "gap").tolist() == [0.0, 0.0]
    assert set(kinds(mean).values()) == set(kinds(mean, of_saturated=True).values()) == {"mean-like"}


def test_a_window_fills_and_cuts():
    result = normgrowth.heads(loaded(encoder()), TEXT, window=4)
    assert "3 of 5 sentences were cut at 4 tokens to fit the window" in result.notes
    with pytest.raises(InputError, match="has only 90 positions"):
        heads(loaded(encoder()), TEXT, window=91)
    with pytest.raises(InputError, match="pass texts"):
        heads(encoder(), inputs=[{"input_ids": torch.tensor([[1, 2, 3]])}], window=4)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3), st.floats(0.01, 30), st.integers(0, 10**6), st.booleans())
def test_laws(length, rows, size, seed, causal):
    """Whatever the scores are: bounds, and that heads get hard as scores grow."""
    source = torch.Generator().manual_seed(seed)

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x):
            s = self.factor * x
            if causal:
                s = s.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            return torch.softmax(s, -1) @ torch.ones(length, 1, dtype=torch.float64)

    x = size * torch.randn(rows, 2, length, length, generator=source, dtype=torch.float64)
    model = Scores()
    records = heads(model, inputs=[(x,)], c=(1e6,))
    found = {name: of_heads(records, name) for name in records.where(level="head").distinct("quantity")}
    for name in ("entropy_share", "first_share", "previous_share", "hard_distance", "saturated_distance"):
        assert ((found[name] >= 0) & (found[name] <= 1)).all(), name
    for name in ("effective", "effective_2", "attended"):
        assert (found[name] >= 1 - 1e-12).all(), name
        assert (found[name] <= found["visible"] + 1e-9).all(), name
    assert (found["effective_2"] <= found["effective"] + 1e-9).all()
    assert (found["entropy"] <= math.log(length) + 1e-12).all()
    assert (found["distance"] <= length - 1).all()
    assert found["attended"] == pytest.approx(of_heads(records, "attended", 1e6))
    assert (found["hard_scale"] >= math.log(99) / size / 20).all()
    # At its own scale a head is hard: 9 of 10 queries have 99 % of their weight on one position.
    for h in range(2):
        hard = torch.softmax(
            (1 + 1e-9)
            * found["hard_scale"][h]
            * (
                x[:, h]
                if not causal
                else x[:, h].masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            ),
            -1,
        ).amax(-1)
        queries = hard[:, 1:] if causal else hard
        assert (queries >= 0.99).double().mean() >= 0.9


@pytest.mark.parametrize("leaking", [False, True])
def test_long_sequences_are_looked_at_in_blocks(leaking):
    """4,096 tokens: no tensor of ours has all queries and all keys. An explicit softmax makes its own."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64:
                    self.size = max(self.size, tensor.numel())
            return out

    length = 4096 if not leaking else 1024
    model = encoder(dtype=torch.float32, width=8, layers=1, heads=2, max_length=4096, leaking=leaking)
    ids = torch.randint(0, 19, (1, length))
    with Largest() as mode:
        records = heads(model, inputs={"input_ids": ids})
    assert mode.size <= max(BLOCK, 16 * length)
    assert WHOLE < 2 * 4096**2  # the limit went by blocks too
    assert value(records, "visible") == (length if leaking else pytest.approx((length + 2) / 2))


def test_what_is_kept_of_queries_is_one_piece():
    """Small pieces that stay between the blocks made 4,096 tokens take ten times as much memory."""
    tallies = []

    def saw(call):
        tallies.append(Tally())
        add_soft(call, None, TOLERANCE, tallies[-1])
        assert call.shape[2] > BLOCK // (call.shape[1] * call.shape[3])

    model = encoder(dtype=torch.float32, width=8, layers=1, heads=2, max_length=1024)
    with torch.no_grad(), seen(model, saw):
        model(torch.randint(0, 19, (1, 1024)))
    (tally,) = tallies
    assert [len(kept) for kept in tally.kept.values()] == [1, 1]
    assert [len(values) for values in tally.all("gap")] == [1023, 1023]


def test_the_model_is_left_as_it_was():
    model = encoder(dtype=torch.float32).train()
    model.blocks[0].eval()
    before = copy.deepcopy(model.state_dict())
    first = heads(loaded(model), TEXT, c=(1000,), window=20)
    assert all(torch.equal(a, before[name]) for name, a in model.state_dict().items())
    assert model.training
    assert not model.blocks[0].training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    again = heads(loaded(model), TEXT, c=(1000,), window=20)
    np.testing.assert_array_equal(first.table["value"].to_numpy(), again.table["value"].to_numpy())


@pytest.mark.parametrize("norm_first", [False, True])
def test_models_of_torch_itself(norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    records = heads(model, inputs=[x], c=(1e5,))
    assert records.where(level="layer").distinct("name") == ["layer.0", "layer.1"]
    assert of_heads(records, "attended") == pytest.approx(of_heads(records, "attended", 100000))
    first = model.layers[0]
    with torch.no_grad():
        given_ = first.norm1(x) if norm_first else x
        weights = first.self_attn(given_, given_, given_, average_attn_weights=False)[1]
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean((0, 2))
    assert of_heads(records, "entropy")[:4] == pytest.approx(entropy.numpy())


class Attends(nn.Module):
    """One layer of torch's own attention, which tells its weights: scores are (rows · heads, queries, keys)."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x, average_attn_weights=False)


def test_rows_and_heads_as_one():
    torch.manual_seed(0)
    model = Attends().double()
    x = torch.randn(3, 7, 16, dtype=torch.float64)
    records = heads(model, inputs=[x], c=(1e4,))
    weights = model(x)[1].detach()
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean((0, 2))
    assert of_heads(records, "entropy") == pytest.approx(entropy.numpy(), rel=1e-12)
    assert of_heads(records, "attended") == pytest.approx(of_heads(records, "attended", 10000))


def test_xglm():
    torch.manual_seed(0)
    shape = dict(vocab_size=99, d_model=32, num_layers=2, attention_heads=4, ffn_dim=64)
    model = transformers.XGLMModel(transformers.XGLMConfig(**shape)).eval()
    ids = torch.randint(3, 99, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    records = heads(model, inputs={"input_ids": ids, "attention_mask": mask})
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    counts = mask.bool() & (mask.cumsum(1) > 1)
    entropies = [-torch.special.xlogy(a, a).sum(-1).transpose(0, 1)[:, counts].mean(1) for a in found]
    assert of_heads(records, "entropy") == pytest.approx(torch.cat(entropies).numpy(), rel=1e-5)


@pytest.fixture
def sinks():
    """A GPT-OSS whose heads differ; its sinks are no tokens."""
    torch.manual_seed(0)
    shape = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=8)
    shape |= dict(num_key_value_heads=2, intermediate_size=64, num_local_experts=2, num_experts_per_tok=1)
    config = transformers.GptOssConfig(**shape, sliding_window=4, experts_implementation="eager")
    model = transformers.GptOssModel(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        model.layers[0].self_attn.sinks[0] = 100.0
    return model


def test_a_learned_sink_is_one_more_position(sinks):
    ids = torch.randint(3, 50, (2, 9))
    records = heads(sinks, inputs={"input_ids": ids}, c=(1e3, 1e4))
    with torch.no_grad():
        tokens = torch.cat(sinks(input_ids=ids, output_attentions=True).attentions, 1)  # (rows, heads, 9, 9)
    sink = 1 - tokens.sum(-1)
    place = torch.arange(9)
    wanted = {
        "learned_sink_share": sink,
        "entropy": -torch.special.xlogy(tokens, tokens).sum(-1) - torch.special.xlogy(sink, sink),
        "effective_2": 1 / (tokens.square().sum(-1) + sink.square()),
        "distance": (tokens * (place - place[:, None]).abs()).sum(-1),
        "visible": (tokens > 0).sum(-1).double() + 1,
        "visible_distance": ((tokens > 0) * (place - place[:, None]).abs()).sum(-1)
        / ((tokens > 0).sum(-1).double() + 1),
    }
    for quantity, values in wanted.items():
        assert of_heads(records, quantity) == pytest.approx(values.mean((0, 2)).numpy(), abs=1e-9), quantity
    # The model takes the largest score off all others before softmax: they come back.
    assert of_heads(records, "largest_logit")[0] == 100
    assert of_heads(records, "attended") == pytest.approx(of_heads(records, "attended", 10000))
    assert 0 < of_heads(records, "saturated_learned_sink_share").max() < 1
    assert kinds(records)[records.single_run(), 0, "layer.0.head.0"] == "sink"


def test_learned_sinks_padding_and_patterns(sinks):
    ids = torch.randint(3, 50, (1, 9))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    padded = heads(sinks, inputs={"input_ids": ids, "attention_mask": mask})
    alone = heads(sinks, inputs={"input_ids": ids[:, :6]})
    for quantity in (*SOFT, *HARD, "learned_sink_share"):
        assert of_heads(padded, quantity) == pytest.approx(of_heads(alone, quantity), rel=1e-6), quantity
    found = patterns(LoadedModel("sinks", sinks), "a b c d", ["layer.0.head.0"])[0].heads["layer.0.head.0"]
    assert np.array(found.soft) == pytest.approx(np.zeros((4, 4)))
    assert np.array(found.saturated).shape == (4, 4)


def test_layers_without_a_sink_have_nothing_on_it():
    class Layer(nn.Module):
        def __init__(self, sinks):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))
            self.sinks = nn.Parameter(torch.tensor([0.5, -1.0])) if sinks else None

        def forward(self, x):
            scores = self.factor * x
            if self.sinks is not None:
                scores = torch.cat([scores, self.sinks[:, None, None].expand(len(x), 2, 5, 1)], -1)
            return x + scores.softmax(-1)[..., :5]

    model = nn.Sequential(Layer(True), Layer(False))
    records = heads(model, inputs=[torch.randn(3, 2, 5, 5)], exact=False)
    found = of_heads(records, "learned_sink_share")
    assert (found[:2] > 0).all()
    assert found[2:].tolist() == [0.0, 0.0]
    assert of_heads(records, "visible").tolist() == [6.0, 6.0, 5.0, 5.0]


def test_a_parameter_that_is_added_to_scores():
    """The soft weights beside the limit are those of the network itself: there its bias does not grow."""

    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Linear(8, 8, bias=False)
            self.bias = nn.Parameter(torch.randn(1, 2, 5, 5))

        def forward(self, x):
            q = self.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=self.bias)

    torch.manual_seed(0)
    model, x = Biased().double(), torch.randn(2, 5, 8, dtype=torch.float64)
    records = heads(model, inputs=[x])
    with torch.no_grad():
        q = model.query(x).unflatten(-1, (2, 4)).transpose(1, 2)
        scores = q @ q.mT / 2
        hard = (scores == scores.amax(-1, keepdim=True)).double()
        wanted = ((scores + model.bias).softmax(-1) - hard).abs().sum(-1).mean((0, 2)) / 2
    assert of_heads(records, "saturated_distance") == pytest.approx(wanted.numpy())


def test_heads_that_see_unlike_numbers_of_positions():
    """Of seven queries the first head has six that choose, the second two: eight, which is no four for each."""

    class Unlike(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x):
            near = torch.eye(7, dtype=torch.bool)
            causal = torch.ones(7, 7, dtype=torch.bool).tril()
            near[:3] = causal[:3]
            return (self.factor * x).masked_fill(~torch.stack([causal, near]), -torch.inf).softmax(-1)

    torch.manual_seed(0)
    x = torch.randn(1, 2, 7, 7, dtype=torch.float64)
    records = heads(Unlike(), inputs=[x], exact=False)
    with torch.no_grad():
        weights = Unlike()(x)[0].log().numpy()
    for h in range(2):
        wanted = reference([weights[None, h : h + 1]])
        for quantity in ("gap", "hard_scale", "entropy", "visible"):
            assert of_heads(records, quantity)[h] == pytest.approx(wanted[quantity][0]), quantity


def test_an_encoder_in_training():
    """As a training loop has it, with its own names for what it takes."""
    model = encoder()
    bare = Encoder(model.config).double()
    bare.load_state_dict(model.state_dict())
    ids = torch.tensor([row + [0] * (16 - len(row)) for row in rows_of()])
    mask = torch.tensor([[1] * len(row) + [0] * (16 - len(row)) for row in rows_of()])
    found, wanted = heads(bare, inputs=[{"ids": ids, "mask": mask}]), heads(loaded(model), TEXT)
    for quantity in (*SOFT, *HARD):
        assert of_heads(found, quantity) == pytest.approx(of_heads(wanted, quantity), rel=1e-7)


def test_bad_input():
    with pytest.raises(InputError, match="no softmax over"):
        heads(nn.Linear(3, 3), inputs=[torch.zeros(2, 3)])
    with pytest.raises(
        InputError, match=r"scores \(2, 4, 7, 8\) are not tokens × tokens, .* no other attention"
    ):
        heads(Attends(add_zero_attn=True), inputs=[torch.zeros(2, 7, 16)])
    shape = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(InputError, match=r"MambaModel: no softmax over .* it has no such attention"):
        heads(transformers.MambaModel(transformers.MambaConfig(**shape)), ["a b c"])
    model = encoder()
    with pytest.raises(InputError, match="more than one position"):
        heads(model, inputs=[{"input_ids": torch.tensor([[3]])}])
    for options, message in (
        ({"sentences": 0}, "sentences and batch_tokens must be >= 1"),
        ({"window": 1}, "window must be >= 2"),
        ({"c": (0,)}, "finite and above 0"),
        ({"c": (2, 2)}, "must differ"),
        ({"tolerance": 0.5}, "between 0 and 0.5"),
    ):
        with pytest.raises(InputError, match=message):
            heads(loaded(model), TEXT, **options)
    with torch.no_grad():
        model.blocks[1].attention.key.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match=r"blocks\.1\.attention\.key\.weight holds NaN"):
        heads(loaded(model), TEXT)


def test_where_the_limit_has_no_rule_the_way_out_is_named():
    class Exponential(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.temperature = encoder(layers=1), nn.Parameter(torch.ones(()))

        def forward(self, ids):
            return self.own(ids).hidden_states[-1] * self.temperature.exp()

    ids = torch.tensor([[3, 4, 5]])
    with pytest.raises(InputError, match=r"faster than any power of c; .*exact=False"):
        heads(Exponential(), inputs=[ids])
    assert len(of_heads(heads(Exponential(), inputs=[ids], exact=False), "entropy")) == 4


def test_scores_that_overflow_are_named():
    model = encoder(dtype=torch.float32)
    with torch.no_grad():
        model.blocks[1].attention.key.weight.fill_(3e38)
    with pytest.raises(InputError, match=r"blocks\.1\.attention: scores are not finite"):
        heads(loaded(model), TEXT)


def test_a_scale_that_overflows_is_left_out():
    """What is too large for float64 is no measurement; what T5's norms would lose in float32 is one."""
    result = normgrowth.heads(architecture("t5"), TEXT, c=(10, 1e30, 1e160), window=16)
    records = result.records
    assert "c = 1e+160 is left out: scores overflow" in result.notes
    assert records.distinct("scale") == [None, 10, 1e30]
    for scale in (None, 10, 1e30):
        assert {"attended", "attended_window"} <= set(records.where(scale=scale).distinct("quantity"))


@pytest.mark.parametrize("name", ["bert", "t5", "llama", "mistral", "gemma3"])
def test_ties_at_a_scale_are_those_of_the_dtype_of_the_pass(name):
    """One token ten times: in T5 the position bias alone decides, by less than float32 rounds scores to."""
    model = architecture(name).float()
    batch = {"input_ids": torch.full((1, 10), 7), "attention_mask": torch.ones(1, 10, dtype=torch.long)}
    records = heads(model, inputs=[batch], c=(1000,))
    exact, scaled = of_heads(records, "attended"), of_heads(records, "attended", 1000)
    if name == "t5":
        assert scaled.max() < 2
    assert scaled == pytest.approx(exact)


def test_a_scaled_pass_computes_in_float64_throughout():
    """Norms and rotary positions of transformers ask for float32, whatever the model is in."""
    seen_dtypes = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            leaves = [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
            seen_dtypes.update(x.dtype for x in leaves if x.is_floating_point())
            return found

    model = architecture("llama").float()
    with Watch(), wide_copy(model, 10.0) as scaled:
        seen_dtypes.clear()
        with torch.no_grad():
            scaled(input_ids=torch.tensor([[3, 4, 5]]))
    assert seen_dtypes == {torch.float64}


def test_kinds():
    plain = dict(entropy_share=0.5, first_share=0.1, previous_share=0.1, largest_share=0.5)
    assert kind(plain) == "in between"
    assert kind(plain | {"entropy_share": 0.9}) == "mean-like"
    assert kind(plain | {"first_share": 0.5}) == "sink"
    assert kind(plain | {"previous_share": 0.5}) == "previous-token"
    assert kind(plain | {"largest_share": 0.75}) == "argmax-like"
    assert kind(plain, of_saturated=True) == ""
    hard = dict(attended_spread=0.0, saturated_largest_share=1.0)
    hard |= dict(saturated_first_share=0.0, saturated_previous_share=0.0)
    assert kind(hard, of_saturated=True) == "argmax-like"
    assert kind(hard | {"saturated_first_share": 1.0}, of_saturated=True) == "sink"
    assert kind(hard | {"attended_spread": 1.0}, of_saturated=True) == "mean-like"
    assert kind(hard | {"saturated_largest_share": 0.5}, of_saturated=True) == "in between"
    result = normgrowth.heads(loaded(encoder()), TEXT, run="a", step=3)
    (model,) = result.models.values()
    for own, of_saturated in ((model.kinds, False), (model.saturated_kinds, True)):
        again = kinds(result.records, of_saturated=of_saturated)
        assert again == {("a", 3, name): found for name, found in own.items()}
        assert len(own) == 8
    (model,) = normgrowth.heads(loaded(encoder()), TEXT, exact=False).models.values()
    assert not model.saturated_kinds


def test_a_result_is_saved_and_loaded(tmp_path):
    result = normgrowth.heads(loaded(encoder()), TEXT, window=20, show="the cat sat", out=tmp_path / "out")
    again = load(tmp_path / "out")
    assert isinstance(again, Heads)
    assert again.models == result.models
    assert (again.window, again.tolerance, again.c) == (20, 0.01, ())
    values = [one.records.table["value"].to_numpy() for one in (again, result)]
    np.testing.assert_array_equal(*values)
    (model,) = again.models.values()
    assert model.patterns is not None
    assert len(model.patterns.heads) == 4
    assert (model.model.text.sentences, model.model.text.tokenized) == (5, True)
    assert "8 heads" in str(again)
    assert again.plot().axes
    assert again.plot.patterns().axes
    assert again.plot.positions().axes
    with pytest.raises(FolderMismatch):
        normgrowth.heads(loaded(encoder()), TEXT, window=21, out=tmp_path / "out")
    with pytest.raises(InputError):
        normgrowth.heads(loaded(encoder()), TEXT, show_heads=["layer.0.head.0"])


def test_patterns_of_one_sentence():
    model = encoder()
    sentence = "the cat sat on the zebra"
    found, notes = patterns(loaded(model), sentence, ["layer.1.head.2"])
    assert found.tokens == ("<eos>", "the", "cat", "sat", "on", "the", "<unk>")
    assert notes == ["1 word of the sentence unknown to the model: zebra"]
    ids = Words(VOCABULARY)(sentence)["input_ids"]
    scores = scores_by_hand(model, ids)[1, 2]
    wanted = np.array([softmax(row) for row in scores])
    assert np.array(found.heads["layer.1.head.2"].soft) == pytest.approx(wanted, abs=1e-4)
    hard = limit_by_scaling(model, ids)[1, 2]
    assert np.array(found.heads["layer.1.head.2"].saturated) == pytest.approx(hard)
    long, notes = patterns(loaded(model), " ".join(["cat"] * 80), ["layer.0.head.0"])
    assert len(long.tokens) == 64
    assert "cut at 64" in notes[0]
    with pytest.raises(InputError, match=r"no head layer\.2\.head\.0: there are layer\.0\.head\.0"):
        patterns(loaded(model), sentence, ["layer.2.head.0"])
    with pytest.raises(InputError, match="empty sentence"):
        patterns(loaded(model), "  ", [])


def test_a_trained_model():
    """MiniLM: in the limit nearly every head is an argmax; soft, hardly any is."""
    model = load_model("minilm")
    records = heads(model, sentences=10)
    assert len(of_heads(records, "attended")) == 72
    assert value(records, "attended_spread") < 0.01
    assert "mean-like" not in kinds(records, of_saturated=True).values()
    assert 0.3 < value(records, "entropy_share") < 0.9
    rows = read_rows(model.model, None, model.tokenizer, 10).rows
    eager = copy.deepcopy(model.model)
    eager.set_attn_implementation("eager")
    scores = []
    for row in rows[:10]:
        with torch.no_grad():
            found = eager(
                **{name: torch.tensor([cells]) for name, cells in row.items()}, output_attentions=True
            )
        scores.append([a[0].double() for a in found.attentions])
    entropies = [
        torch.cat([-torch.special.xlogy(one[layer], one[layer]).sum(-1) for one in scores], 1).mean(1)
        for layer in range(6)
    ]
    assert of_heads(records, "entropy") == pytest.approx(torch.cat(entropies).numpy(), abs=1e-4)


def test_attention_outside_of_modules_is_not_guessed():
    with pytest.raises(InputError, match="outside of every module"), seen(nn.Identity(), lambda _: None):
        torch.softmax(torch.zeros(1, 1, 2, 2), -1)


def test_shapes_that_are_not_tokens_over_tokens_are_left_out():
    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = encoder(layers=1)

        def forward(self, ids):
            q = torch.ones(1, 2, 3, 4, dtype=torch.float64)
            nn.functional.scaled_dot_product_attention(q, q[:, :, :2], q[:, :, :2])
            return self.own(ids)

    result = normgrowth.heads(Cross(), inputs=[torch.tensor([[3, 4, 5]])], c=(1000,))
    records = result.records
    assert len(of_heads(records, "entropy")) == 4
    assert "scores (1, 2, 3, 2) are not tokens × tokens" in result.notes[0]
