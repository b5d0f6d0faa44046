"""Corpora: sentences as rows of word ids, in three parts, prepared as in the paper (§A).

A row is an end mark, the words of a line, and an end mark. The model reads all tokens but the last and predicts all but
the first, so each word and each end is predicted once. The vocabulary is that of the training part; all other words
become `<unk>`. A row with more tokens than the model has positions is split, and each token is still predicted once.

    penn, wikitext-2      from a folder with train.txt, valid.txt and test.txt, or from the hub; WikiText-2 without
                          headings (lines that start with "=")
    pydoc                 the documentation of Python, always available
    anbn, dyck2, ...      formal languages (`normgrowth.network.inputs.formal_languages`)
    a folder or a file    one sentence per line; the last tenth of a file is held out for development and test
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.lab.data.hub_datasets import PLACES, from_hub
from normgrowth.lab.run import CorpusSummary
from normgrowth.network.inputs.formal_languages import LANGUAGES, language_samples
from normgrowth.network.inputs.tokenized_text import read_text, topic_sentences
from normgrowth.network.models.encoder_folder import END, UNKNOWN, Words

Row = NDArray[np.int64]
Lines = list[list[str]]

PARTS = ("train", "valid", "test")
SHORTEST = 4  # shortest sentence of the documentation, in words
MOST_POSITIONS = 1024  # largest default number of positions, because a line may be a whole book
HELD_OUT = 0.05  # held-out fraction of a corpus without parts, for development and again for test
OF_LANGUAGE = {"train": 10_000, "valid": 1_000, "test": 1_000}  # number of words of a formal language


@dataclass(frozen=True)
class Corpus:
    """Rows of ids of the three parts, and the vocabulary. language: name of the formal language, if it is one."""

    name: str
    vocabulary: Words
    train: list[Row]
    valid: list[Row]
    test: list[Row]
    positions: int  # number of positions that a model needs
    language: str | None = None
    longest: int | None = None  # longest word of the formal language
    notes: list[str] = field(default_factory=list)

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of the rows and words, independent of their source."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for rows in (self.train, self.valid, self.test):
            digest.update(
                np.concatenate([[len(rows)], *([len(row), *row] for row in rows)]).astype("<i8").tobytes()
            )
        return digest.hexdigest()[:16]

    def frequency_loss(self, part: str = "valid", first: int | None = None) -> float:
        """Return nats per token of a model that predicts only word frequencies, the baseline for any model.

        first: use only this many rows of the part.
        """
        size = len(self.vocabulary)
        seen = np.bincount(np.concatenate([row[1:] for row in self.train]), minlength=size)
        wanted = np.bincount(np.concatenate([row[1:] for row in getattr(self, part)[:first]]), minlength=size)
        counts = np.maximum(seen, 1)  # a word that is not in the training part counts once
        return float(-(wanted * np.log(counts / counts.sum())).sum() / wanted.sum())


def load_corpus(
    name: str,
    data: str | Path | None = None,
    *,
    positions: int | None = None,
    min_count: int | None = None,
    longest: int = 50,
    seed: int = 0,
    endpoint: str | None = None,
) -> Corpus:
    """Load a corpus by its name, or from a folder or file of text.

    data: folder that contains `penn` and `wikitext-2`.
    positions: number of positions of the model [default: as many as the longest row needs, at most 1,024].
    min_count: words that are rarer in the training part become `<unk>` [default: 1 for penn and wikitext-2, which
    already contain `<unk>`, else 2]. A formal language keeps all its symbols.
    longest, seed: longest word and random seed of a formal language. endpoint: address of another hub.
    """
    lines, notes = _read(name, data, longest, seed, endpoint)
    known = name in PLACES or name in LANGUAGES
    min_count = min_count or (1 if known else 2)
    vocabulary = _vocabulary(lines["train"], min_count, name)
    rows = {part: _rows(lines[part], vocabulary) for part in PARTS}
    for part in PARTS:
        if not rows[part]:
            raise InputError(f"{name}: the {part} part has no sentences")
    need = max(len(row) for part in rows.values() for row in part) - 1
    language = name if name in LANGUAGES else None
    if positions is None and not language:
        positions = min(need, MOST_POSITIONS)
    if positions is not None and need > positions and language:
        raise InputError(
            f"{name}: words have up to {need - 1} symbols and need {need} positions, got {positions}"
        )
    if positions is not None and need > positions:
        long = sum(len(row) - 1 > positions for part in rows.values() for row in part)
        notes.append(f"{long} sentences have more than {positions} tokens (up to {need}) and are split")
        rows = {part: [piece for row in rows[part] for piece in _pieces(row, positions)] for part in PARTS}
    notes += _unseen(lines, vocabulary, min_count)
    return Corpus(
        name,
        vocabulary,
        **rows,
        positions=positions or need,
        language=language,
        longest=longest if language else None,
        notes=notes,
    )


def describe(corpus: Corpus, dev_sentences: int | None = None) -> CorpusSummary:
    """Return a summary; its frequency loss is for the development sentences that a run uses."""
    parts = {part: getattr(corpus, part) for part in PARTS}
    return CorpusSummary(
        name=corpus.name,
        fingerprint=corpus.fingerprint,
        vocabulary=len(corpus.vocabulary),
        positions=corpus.positions,
        sentences={part: len(rows) for part, rows in parts.items()},
        tokens={part: sum(len(row) - 1 for row in rows) for part, rows in parts.items()},
        frequency_loss=corpus.frequency_loss("valid", dev_sentences),
    )


def _read(
    name: str, data: str | Path | None, longest: int, seed: int, endpoint: str | None
) -> tuple[dict[str, Lines], list[str]]:
    if name in LANGUAGES:
        seeds = np.random.SeedSequence(seed).generate_state(len(PARTS))
        lines = {
            part: [list(word) for word in language_samples(name, OF_LANGUAGE[part], longest, int(own))]
            for part, own in zip(PARTS, seeds, strict=True)
        }
        known = {tuple(word) for word in lines["train"]}
        again = sum(tuple(word) in known for word in lines["valid"]) / len(lines["valid"])
        return lines, [
            f"valid: {again:.0%} of the words are also in the training part (there are few short words)"
        ]
    if name in PLACES:
        folder = None if data is None else Path(data) / name
        lines = from_hub(name, endpoint) if folder is None else _folder(folder)
        if name == "wikitext-2":
            lines = {part: [line for line in rows if line[0] != "="] for part, rows in lines.items()}
        return lines, []
    if name == "pydoc":
        return _split(_documentation(), name)
    path = Path(name)
    if path.is_dir():
        return _folder(path), []
    if path.is_file():
        return _split(_lines(path), name)
    raise InputError(
        f"{name}: no such file or folder; known corpora: {', '.join([*PLACES, 'pydoc', *LANGUAGES])}"
    )


def _folder(folder: Path) -> dict[str, Lines]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; set --data to the folder that contains {folder.name}")
    return {part: _lines(folder / f"{part}.txt") for part in PARTS}


def _lines(path: Path) -> Lines:
    return [words for line in read_text(path).split("\n") if (words := line.split())]


def _documentation() -> Lines:
    """Return the sentences of Python's documentation as words and signs, without duplicates, code and tables."""
    found: dict[str, list[str]] = {}
    for sentence in topic_sentences(".!?:"):
        words = re.findall(r"\w+|[^\w\s]", sentence)
        prose = sum(word.isalpha() for word in words) >= 0.6 * len(words)
        if len(words) >= SHORTEST and prose and sentence[0].isupper():
            found[sentence] = words
    lines = list(found.values())
    # Topics are sorted by name: mix them over the parts.
    return [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]


def _split(lines: Lines, name: str) -> tuple[dict[str, Lines], list[str]]:
    """Split lines into parts in the order of the text, because neighboring sentences in two parts leak information."""
    held = max(1, int(HELD_OUT * len(lines)))
    if len(lines) < 3:
        raise InputError(f"{name}: too few sentences for training, development and test: {len(lines)}")
    end = len(lines) - 2 * held
    parts = {"train": lines[:end], "valid": lines[end : end + held], "test": lines[end + held :]}
    return parts, [f"{held} sentences each are held out for development and test"]


def _vocabulary(lines: Lines, min_count: int, name: str) -> Words:
    """Return the end mark, `<unk>`, then words by decreasing frequency; ties in alphabetical order."""
    counts = Counter(word for line in lines for word in line)
    if name in LANGUAGES:  # keep all symbols, even those that do not occur in short words
        counts.update(dict.fromkeys(LANGUAGES[name].alphabet, 0))
        min_count = 0
    kept = sorted(
        (word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word)
    )
    if not counts:
        raise InputError(f"{name}: the training part has no words")
    return Words([END, UNKNOWN, *(word for word in kept if word not in (END, UNKNOWN))])


def _rows(lines: Lines, vocabulary: Words) -> list[Row]:
    end = vocabulary.ids[END]
    return [np.array([end, *vocabulary.encode(line), end]) for line in lines if line]


def _pieces(row: Row, positions: int) -> Iterator[Row]:
    """Split a row. A piece starts with the last token of the previous one, so each token is predicted once."""
    for start in range(0, len(row) - 1, positions):
        yield row[start : start + positions + 1]


def _unseen(lines: dict[str, Lines], vocabulary: Words, min_count: int) -> list[str]:
    found = []
    has = "absent from training" if min_count == 1 else f"seen less than {min_count} times in training"
    for part in ("valid", "test"):
        words = [word for line in lines[part] for word in line]
        types = {word for word in words if word not in vocabulary.ids}
        if types:
            share = sum(word in types for word in words) / len(words)
            found.append(
                f"{part}: {len(types):,} words {has} ({share:.1%} of all tokens) are replaced by {UNKNOWN}"
            )
    return found


def in_batches(
    lengths: Sequence[int], size: int, rng: np.random.Generator, pool: int = 64
) -> list[NDArray[np.int64]]:
    """Return random batches that contain each row once; rows of a batch have similar lengths, so padding is small.

    Rows are shuffled, sorted by length within pools of `pool` batches, and split into batches, which are shuffled.
    """
    order = rng.permutation(len(lengths))
    own = np.asarray(lengths)
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), size * pool):
        part = order[start : start + size * pool]
        part = part[np.argsort(own[part], kind="stable")]
        batches += [part[i : i + size] for i in range(0, len(part), size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def padded(rows: Iterable[Row], filling: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return rows as one array (rows, tokens), and the mask of real tokens."""
    rows = list(rows)
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(real.shape, filling, np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real
