"""Configs that lie about types, sizes and structure: a model, or one line that names the file and the value."""

import json
import resource
import time
from functools import partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiny_configs import tiny_config

import normgrowth
from normgrowth.errors import ConfigError, FolderMismatch, InputError
from normgrowth.network.models.load import load_model
from normgrowth.saturation import saturation

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ("bert", "gpt2", "llama", "olmo2", "t5")
HEADS = {"gpt2": "n_head", "t5": "num_heads"}
WIDTH = {"gpt2": "n_embd", "t5": "d_model"}
LAYERS = {"gpt2": "n_layer", "t5": "num_layers"}
SECONDS, BYTES = 20, 1_000_000_000


def saved(folder, name="bert", drop=(), **changes):
    content = {**json.loads(tiny_config(name).to_json_string()), **changes}
    for key in drop:
        content.pop(key, None)
    folder.mkdir(exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps(content))
    return file


def refused(file, **options):
    with pytest.raises(InputError) as caught:
        load_model(file, **options)
    message = str(caught.value)
    assert str(file) in message
    assert "\n" not in message
    assert len(message) < 500
    return caught.value


def test_an_unknown_activation_is_named_as_a_value_of_the_config(tmp_path):
    message = str(refused(saved(tmp_path, "bert", hidden_act="nonsense")))
    assert "config.json: has the value 'nonsense', which transformers does not know" in message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [0, -4, "4", 2.5])
def test_heads_that_are_no_number_of_heads(tmp_path, name, heads):
    key = HEADS.get(name, "num_attention_heads")
    message = str(refused(saved(tmp_path, name, **{key: heads})))
    assert key in message
    assert str(heads) in message


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "olmo2"])  # T5 says how wide a head is
def test_heads_that_do_not_divide_the_width(tmp_path, name):
    message = str(refused(saved(tmp_path, name, **{HEADS.get(name, "num_attention_heads"): 15})))
    assert "15" in message
    assert "32" in message


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [-32, "32", [32], None, {"a": 1}])
def test_widths_that_are_no_size(tmp_path, name, size):
    key = WIDTH.get(name, "hidden_size")
    assert key in str(refused(saved(tmp_path, name, **{key: size})))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_beyond_memory_are_refused_before_anything_is_built(tmp_path, name):
    start = time.monotonic()
    for changes in (
        {"vocab_size": 2_000_000_000},
        {"vocab_size": 10**12},
        {LAYERS.get(name, "num_hidden_layers"): 10**9},
    ):
        error = refused(saved(tmp_path, name, **changes))
        ((key, value),) = changes.items()
        assert isinstance(error, ConfigError)
        assert (error.key, error.value) == (key, value)
    assert time.monotonic() - start < SECONDS


def test_our_own_encoder_of_terabytes(tmp_path):
    said = {"model_type": "normgrowth_encoder", "vocabulary": 10, "max_length": 8}
    for key, value in (("vocabulary", 10**12), ("width", 2**20), ("layers", 10**9), ("heads", 15)):
        file = tmp_path / "config.json"
        file.write_text(
            json.dumps({**said, "heads": 4, "width": 2**20 if key == "width" else 32} | {key: value})
        )
        with pytest.raises(InputError, match=key if key != "heads" else "15 heads"):
            load_model(file)


def test_a_config_without_model_type_says_so_and_takes_one(tmp_path):
    file = saved(tmp_path, drop=["model_type"], architectures=["BertForMaskedLM"])
    error = refused(file)
    assert isinstance(error, ConfigError)
    assert error.key == "model_type"
    assert "model_type is missing: " in str(error)
    assert "--model-type" in str(error)
    assert "bert" in error.problem
    given_one = load_model(file, model_type="bert")
    assert type(given_one.model).__name__ == "BertModel"
    wrong = refused(file, model_type="brt")
    assert isinstance(wrong, ConfigError)
    assert "bert" in wrong.problem


@pytest.mark.parametrize("verb", ["saturation", "heads", "scaling"])
def test_another_model_type_is_another_request(tmp_path, verb):
    """RoBERTa's and BERT's configs have the same keys: only --model-type tells them apart."""
    file = saved(tmp_path / "model", drop=["model_type"])
    run = partial(getattr(normgrowth, verb), file, out=tmp_path / "out", c=(1.0, 2.0), dtype="float32")
    sentences = {"sentences": 2} if verb != "scaling" else {"seeds": 1}
    first = run(model_type="bert", **sentences)
    with pytest.raises(FolderMismatch) as caught:
        run(model_type="roberta", **sentences)
    assert "model_type" in str(caught.value)
    assert normgrowth.load(tmp_path / "out").to_pandas().equals(first.to_pandas())  # NaN equals NaN
    replaced = run(model_type="roberta", overwrite=True, **sentences)
    assert not replaced.to_pandas().equals(first.to_pandas())


def test_weights_of_other_sizes_are_named(tmp_path):
    load_model(saved(tmp_path)).model.save_pretrained(tmp_path)
    saved(tmp_path, vocab_size=77)
    with pytest.raises(InputError, match=r"word_embeddings.*77×32.*99×32"):
        load_model(tmp_path)


def test_a_first_decoder_token_outside_the_vocabulary(tmp_path):
    from normgrowth.network.inputs.default_inputs import default_inputs

    with pytest.raises(InputError, match="decoder_start_token_id is 200"):
        default_inputs(load_model(saved(tmp_path, "t5", decoder_start_token_id=200)))


# --- search ----------------------------------------------------------------------------------------------------
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 130),
    st.sampled_from([2**31 - 1, 2**31, 10**12, 10**30, -(2**40)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=8),
    st.lists(st.integers(-2, 5), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(-2, 5), max_size=2),
)
KEYS = {name: sorted(json.loads(tiny_config(name).to_json_string())) for name in NAMES}


@st.composite
def mutated(draw):
    name = draw(st.sampled_from(NAMES))
    keys = draw(st.lists(st.sampled_from(KEYS[name]), min_size=1, max_size=3, unique=True))
    return name, {key: draw(JUNK) for key in keys}, draw(st.lists(st.sampled_from(KEYS[name]), max_size=2))


# A few in `make test`, the same each time; as many as the profile says in a search.
@settings(
    max_examples=25 if settings().derandomize else settings().max_examples,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(mutated())
@example(("t5", {"pad_token_id": None, "relative_attention_num_buckets": 0}, []))
def test_any_config_is_a_model_or_one_line(tmp_path_factory, case):
    name, changes, dropped = case
    file = saved(tmp_path_factory.mktemp("fuzz"), name, drop=dropped, **changes)
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said, weights = "", 0
    try:
        loaded = load_model(file)
        # A dropped size takes its default, which may be that of a large model: an honest one.
        weights = sum(parameter.numel() * parameter.element_size() for parameter in loaded.model.parameters())
        if weights < BYTES / 10:
            saturation(loaded, ["one two three", "four five"], c=(10,), exact=False)
    except InputError as error:
        said = str(error)
    assert "\n" not in said
    assert time.process_time() - start < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < BYTES + 3 * weights
