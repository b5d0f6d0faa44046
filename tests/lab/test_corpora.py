"""Corpora: the paper's preparation, rows that predict each token once, batches that waste nothing."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import HubServer
from hypothesis import given
from hypothesis import strategies as st

from normgrowth.errors import InputError
from normgrowth.lab.data.corpus import PARTS, in_batches, load_corpus, padded
from normgrowth.network.inputs.formal_languages import language


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the cat number {i % 7} sat\n" for i in range(100)), encoding="utf-8")
    return path


def words_of(corpus, row):
    return [corpus.vocabulary.words[i] for i in row]


def test_penn_as_in_the_paper(data):
    corpus = load_corpus("penn", data)
    assert len(corpus.vocabulary) == 10_000  # with the end mark
    assert corpus.positions == 83
    assert [len(getattr(corpus, part)) for part in PARTS] == [42_068, 3_370, 3_761]
    assert sum(len(row) - 1 for row in corpus.train) == 887_521 + 42_068
    assert corpus.notes == []
    lines = (data / "penn" / "valid.txt").read_text(encoding="utf-8").splitlines()
    assert words_of(corpus, corpus.valid[3]) == ["<eos>", *lines[3].split(), "<eos>"]


def test_wikitext_without_headings_has_three_unseen_words(data):
    """The check that the paper's preparation was understood."""
    corpus = load_corpus("wikitext-2", data)
    assert corpus.positions == 700
    assert [len(getattr(corpus, part)) for part in PARTS] == [17_556, 1_841, 2_183]
    assert any("test: 3 words absent from training" in note for note in corpus.notes)
    words = [
        [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for path in (Path(data) / "wikitext-2" / f"{part}.txt" for part in ("train", "test"))
    ]
    trained, tested = ([word for line in part if line[0] != "=" for word in line] for part in words)
    known = set(trained)
    assert (len(tested), sum(word not in known for word in tested)) == (235_845, 5)
    first = {words_of(corpus, row)[1] for part in PARTS for row in getattr(corpus, part)}
    assert "=" not in first


def test_the_documentation_is_always_there():
    corpus = load_corpus("pydoc")
    assert sum(len(row) - 1 for row in corpus.train) > 30_000
    assert corpus.fingerprint == load_corpus("pydoc").fingerprint
    rows = {tuple(row) for row in corpus.train}
    assert not any(tuple(row) in rows for row in corpus.test)


def test_parts_of_a_file_follow_each_other(text):
    corpus = load_corpus(str(text))
    assert [len(getattr(corpus, part)) for part in PARTS] == [90, 5, 5]
    lines = text.read_text().splitlines()
    assert [" ".join(words_of(corpus, row)[1:-1]) for row in corpus.test] == lines[95:]


def test_a_folder_with_three_files(tmp_path):
    for part in PARTS:
        (tmp_path / f"{part}.txt").write_text("a b\n\n a a\n", encoding="utf-8")
    corpus = load_corpus(str(tmp_path), min_count=1)
    assert [words_of(corpus, row) for row in corpus.valid] == [
        ["<eos>", "a", "b", "<eos>"],
        ["<eos>", "a", "a", "<eos>"],
    ]


def test_words_that_training_does_not_know(tmp_path):
    (tmp_path / "train.txt").write_text("a a b b c\n")
    (tmp_path / "valid.txt").write_text("a z c z\n")
    (tmp_path / "test.txt").write_text("b\n")
    corpus = load_corpus(str(tmp_path))
    assert corpus.vocabulary.words == ["<eos>", "<unk>", "a", "b"]  # c comes once
    assert words_of(corpus, corpus.valid[0]) == ["<eos>", "a", "<unk>", "<unk>", "<unk>", "<eos>"]
    assert corpus.notes == [
        "valid: 2 words seen less than 2 times in training (75.0% of all tokens) are replaced by <unk>"
    ]


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path):
    for part in PARTS:
        (tmp_path / f"{part}.txt").write_bytes(b"\xef\xbb\xbfthe cat\r\nthe cat\r\n")
    assert load_corpus(str(tmp_path)).vocabulary.words == ["<eos>", "<unk>", "cat", "the"]


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), positions=st.integers(1, 12))
def test_long_sentences_are_cut_and_each_token_is_predicted_once(tmp_path_factory, lengths, positions):
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join(f"w{i}" for i in range(n)) for n in lengths]
    for part in PARTS:
        (folder / f"{part}.txt").write_text("\n".join(lines), encoding="utf-8")
    corpus = load_corpus(str(folder), positions=positions, min_count=1)
    assert max(len(row) for row in corpus.train) <= positions + 1
    assert min(len(row) for row in corpus.train) >= 2
    predicted = [word for row in corpus.train for word in words_of(corpus, row)[1:]]
    assert predicted == [word for line in lines for word in [*line.split(), "<eos>"]]
    cut = sum(n + 1 > positions for n in lengths)
    assert any(f"{3 * cut} sentences have more than {positions} tokens" in note for note in corpus.notes) == (
        cut > 0
    )


def test_a_formal_language():
    corpus = load_corpus("dyck1", longest=20, seed=3)
    assert corpus.language == "dyck1"
    assert all(language("dyck1").contains(words_of(corpus, row)[1:-1]) for row in corpus.valid)
    assert corpus.positions == 21
    assert corpus.fingerprint != load_corpus("dyck1", longest=20, seed=4).fingerprint


def test_the_loss_of_word_frequencies(tmp_path):
    (tmp_path / "train.txt").write_text(
        "a a a b\n"
    )  # with its end: a 3/5, b 1/5, end 1/5; <unk> counts as once
    (tmp_path / "valid.txt").write_text("a b\n")
    (tmp_path / "test.txt").write_text("b\n")
    corpus = load_corpus(str(tmp_path), min_count=1)
    expected = -(np.log(3 / 6) + np.log(1 / 6) + np.log(1 / 6)) / 3
    assert corpus.frequency_loss() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no words|too few"),
        (b"one\ntwo\n", "too few"),
        (b"\n \n\n", "too few"),
        (b"\xff\xfe\n" * 9, "not UTF-8 text"),
    ],
)
def test_bad_files(tmp_path, content, says):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        load_corpus(str(path))


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="known corpora: penn, wikitext-2, pydoc, anbn"):
        load_corpus("nowhere")
    with pytest.raises(InputError, match="set --data to the folder that contains penn"):
        load_corpus("penn", tmp_path)
    (tmp_path / "train.txt").write_text("a a\n")
    with pytest.raises(InputError, match=r"valid\.txt: No such file"):
        load_corpus(str(tmp_path))
    (tmp_path / "valid.txt").write_text("\n")
    (tmp_path / "test.txt").write_text("a\n")
    with pytest.raises(InputError, match="the valid part has no sentences"):
        load_corpus(str(tmp_path))
    with pytest.raises(InputError, match="need 21 positions, got 10"):
        load_corpus("dyck1", longest=20, positions=10)


# From the hub ----------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Both data sets as the hub lays them out, on a server of our own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    penn, wiki = tmp_path / "penn", tmp_path / "wiki"
    lines = {"train": ["a b a", "b", ""], "validation": ["a c"], "test": ["b b"]}
    for part, own in lines.items():
        (penn / "penn_treebank" / part).mkdir(parents=True)
        (wiki / "wikitext-2-v1").mkdir(parents=True, exist_ok=True)
        for path, column, rows in (
            (penn / "penn_treebank" / part / "0000.parquet", "sentence", own),
            (wiki / "wikitext-2-v1" / f"{part}-00000-of-00001.parquet", "text", [" = Heading = ", *own]),
        ):
            pq.write_table(pa.table({column: rows}), path)
    repositories = {
        "ptb-text-only/ptb_text_only": {"refs/convert/parquet": penn},
        "Salesforce/wikitext": {"main": wiki},
    }
    with HubServer(repositories) as server:
        yield server


@pytest.mark.parametrize("name", ["penn", "wikitext-2"])
def test_from_the_hub(hub, name):
    corpus = load_corpus(name, endpoint=hub.endpoint)
    assert corpus.vocabulary.words == ["<eos>", "<unk>", "a", "b"]
    assert [words_of(corpus, row)[1:-1] for row in corpus.train] == [["a", "b", "a"], ["b"]]
    assert [words_of(corpus, row)[1:-1] for row in corpus.valid] == [["a", "<unk>"]]
    assert [words_of(corpus, row)[1:-1] for row in corpus.test] == [["b", "b"]]


def test_a_hub_that_has_it_not(hub):
    hub.fail("GET .*/resolve/", status=404)
    hub.fail("HEAD .*/resolve/", status=404)
    with pytest.raises(
        InputError, match=r"penn: hf://datasets/ptb-text-only/ptb_text_only: .*set --data to a folder"
    ):
        load_corpus("penn", endpoint=hub.endpoint)
    hub.repos.clear()
    with pytest.raises(InputError, match=r"wikitext-2: hf://datasets/Salesforce/wikitext: .*--data"):
        load_corpus("wikitext-2", endpoint=hub.endpoint)


@pytest.mark.network
def test_from_the_real_hub(data):
    """The same sentences as in the folder."""
    for name in ("penn", "wikitext-2"):
        assert load_corpus(name).fingerprint == load_corpus(name, data).fingerprint


# Batches ---------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=300),
    size=st.integers(1, 20),
    pool=st.integers(1, 8),
    seed=st.integers(0, 9),
)
def test_every_row_is_in_one_batch(lengths, size, pool, seed):
    batches = in_batches(lengths, size, np.random.default_rng(seed), pool)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= size for batch in batches)
    assert len(batches) == -(-len(lengths) // size)
    again = in_batches(lengths, size, np.random.default_rng(seed), pool)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))


def test_batches_are_random_and_hardly_padded(data):
    lengths = [len(row) - 1 for row in load_corpus("penn", data).train]
    batches = in_batches(lengths, 16, np.random.default_rng(0))
    size = np.array([max(lengths[i] for i in batch) * len(batch) for batch in batches])
    assert sum(lengths) / size.sum() > 0.97
    first = np.array([np.mean([lengths[i] for i in batch]) for batch in batches])
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.1  # no order of lengths over the epoch


def test_rows_as_an_array():
    ids, real = padded([np.array([5, 6, 7]), np.array([8])], filling=9)
    assert ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert real.tolist() == [[True, True, True], [True, False, False]]


def test_a_line_may_be_a_book(tmp_path):
    (tmp_path / "book.txt").write_text("\n".join(["word " * 5000, *["a word"] * 20]))
    corpus = load_corpus(str(tmp_path / "book.txt"))
    assert corpus.positions == 1024
    assert any("1 sentences have more than 1024 tokens (up to 5001)" in note for note in corpus.notes)
