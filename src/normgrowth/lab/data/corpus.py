"""Corpora: sentences as rows of word ids, in three parts, the way the paper prepares them (§A).

A row is an end mark, the words of a line, an end mark; the model reads all but the last token and predicts all but the
first, so each word and each end is predicted once. The vocabulary is that of the training part, with `<unk>` for all
other words. A row with more tokens than the model has positions is cut into pieces, and still each is predicted once.

    penn, wikitext-2      from a folder with train.txt, valid.txt and test.txt, or the hub; of WikiText-2 no headings
                          (lines that begin with "=")
    pydoc                 Python's own documentation, always there
    anbn, dyck2, ...      formal languages (`normgrowth.lab.data.formal_languages`)
    a folder or a file    a sentence a line; of a file the last tenth is kept for development and test
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError
from normgrowth.lab.data.formal_languages import LANGUAGES, sentences
from normgrowth.lab.data.hub_datasets import PLACES, from_hub
from normgrowth.network.models.encoder_folder import END, UNKNOWN, Words

Row = NDArray[np.int64]
Lines = list[list[str]]

PARTS = ("train", "valid", "test")
SHORTEST = 4  # words of a sentence of the documentation
MOST_POSITIONS = 1024  # of a model whose user did not say; a line may be a whole book
HELD_OUT = 0.05  # of a corpus without parts of its own, for development, and again for test
OF_LANGUAGE = {"train": 10_000, "valid": 1_000, "test": 1_000}  # words of a formal language


@dataclass(frozen=True)
class Corpus:
    """Rows of ids of the three parts, and the vocabulary; `language` names a formal one."""

    name: str
    vocabulary: Words
    train: list[Row]
    valid: list[Row]
    test: list[Row]
    positions: int  # the longest row that a model reads
    language: str | None = None
    longest: int | None = None  # words of that language
    notes: list[str] = field(default_factory=list)

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same rows and words, wherever they come from."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        for rows in (self.train, self.valid, self.test):
            digest.update(
                np.concatenate([[len(rows)], *([len(row), *row] for row in rows)]).astype("<i8").tobytes()
            )
        return digest.hexdigest()[:16]

    def frequency_loss(self, part: str = "valid", first: int | None = None) -> float:
        """Nats per token of the model that knows word frequencies only: what any model must get below.

        first: of so many rows of the part.
        """
        size = len(self.vocabulary)
        seen = np.bincount(np.concatenate([row[1:] for row in self.train]), minlength=size)
        wanted = np.bincount(np.concatenate([row[1:] for row in getattr(self, part)[:first]]), minlength=size)
        share = (
            np.maximum(seen, 1) / np.maximum(seen, 1).sum()
        )  # a word that training never has counts as once
        return float(-(wanted * np.log(share)).sum() / wanted.sum())


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
    """A corpus by its name, or a folder or file of text.

    data: the folder that holds `penn` and `wikitext-2`. positions: of the model; by default as many as the longest row
    needs, and 1,024 at the most. min_count: words that training has less often are `<unk>`; 1 for penn and wikitext-2,
    which have theirs already, else 2; of a formal language all symbols are known. longest, seed: of such. endpoint:
    another hub.
    """
    lines, notes = _read(name, data, longest, seed, endpoint)
    known = name in PLACES or name in LANGUAGES
    min_count = min_count or (1 if known else 2)
    vocabulary = _vocabulary(lines["train"], min_count, name)
    rows = {part: _rows(lines[part], vocabulary) for part in PARTS}
    for part in PARTS:
        if not rows[part]:
            raise InputError(f"{name}: its {part} part has no sentence")
    need = max(len(row) for part in rows.values() for row in part) - 1
    language = name if name in LANGUAGES else None
    if positions is None and not language:
        positions = min(need, MOST_POSITIONS)
    if positions is not None and need > positions and language:
        raise InputError(
            f"{name}: its words have up to {need - 1} symbols, which need {need} positions, not {positions}"
        )
    if positions is not None and need > positions:
        long = sum(len(row) - 1 > positions for part in rows.values() for row in part)
        notes.append(
            f"{long} sentences have more than {positions} tokens, up to {need}: they are cut into pieces"
        )
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


def describe(corpus: Corpus, dev_sentences: int | None = None) -> dict[str, Any]:
    """What a corpus is, for those who read records; the loss of word frequencies where the model has its own."""
    parts = {part: getattr(corpus, part) for part in PARTS}
    return {
        "name": corpus.name,
        "fingerprint": corpus.fingerprint,
        "vocabulary": len(corpus.vocabulary),
        "positions": corpus.positions,
        "sentences": {part: len(rows) for part, rows in parts.items()},
        "tokens": {part: sum(len(row) - 1 for row in rows) for part, rows in parts.items()},
        "frequency_loss": corpus.frequency_loss("valid", dev_sentences),
    }


def _read(
    name: str, data: str | Path | None, longest: int, seed: int, endpoint: str | None
) -> tuple[dict[str, Lines], list[str]]:
    if name in LANGUAGES:
        seeds = np.random.SeedSequence(seed).generate_state(len(PARTS))
        lines = {
            part: [list(word) for word in sentences(name, OF_LANGUAGE[part], longest, int(own))]
            for part, own in zip(PARTS, seeds, strict=True)
        }
        known = {tuple(word) for word in lines["train"]}
        again = sum(tuple(word) in known for word in lines["valid"]) / len(lines["valid"])
        return lines, [f"valid: {again:.0%} of its words are in the training part too: short ones are few"]
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
        f"{name}: no such file or folder, and none of {', '.join([*PLACES, 'pydoc', *LANGUAGES])}"
    )


def _folder(folder: Path) -> dict[str, Lines]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; --data names the one that holds {folder.name}")
    return {part: _lines(folder / f"{part}.txt") for part in PARTS}


def _lines(path: Path) -> Lines:
    try:
        text = path.read_text(encoding="utf-8-sig")  # a byte order mark is no part of the first word
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 (byte {error.start})") from None
    return [words for line in text.split("\n") if (words := line.split())]


def _documentation() -> Lines:
    """Python's documentation: each sentence once, without code and tables, words and signs apart."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise InputError("this Python comes without its documentation: give a text file") from None
    found: dict[str, list[str]] = {}
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z])", " ".join(paragraph.split())):
                words = re.findall(r"\w+|[^\w\s]", sentence)
                prose = sum(word.isalpha() for word in words) >= 0.6 * len(words)
                if len(words) >= SHORTEST and prose and sentence[0].isupper():
                    found[sentence] = words
    lines = list(found.values())
    order = np.random.default_rng(0).permutation(len(lines))  # topics come by name: every part gets of each
    return [lines[i] for i in order]


def _split(lines: Lines, name: str) -> tuple[dict[str, Lines], list[str]]:
    """In the order of the text: sentences of one page in two parts would make the test easy."""
    held = max(1, int(HELD_OUT * len(lines)))
    if len(lines) < 3:
        raise InputError(f"{name}: {len(lines)} sentences are too few for training, development and test")
    end = len(lines) - 2 * held
    parts = {"train": lines[:end], "valid": lines[end : end + held], "test": lines[end + held :]}
    return parts, [f"{held} sentences each are kept for development and test"]


def _vocabulary(lines: Lines, min_count: int, name: str) -> Words:
    """The end mark, `<unk>`, then words from the most to the least frequent; ties by the word itself."""
    counts = Counter(word for line in lines for word in line)
    if name in LANGUAGES:  # all symbols: short words need not have each
        counts.update(dict.fromkeys(LANGUAGES[name].alphabet, 0))
        min_count = 0
    kept = sorted(
        (word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word)
    )
    if not counts:
        raise InputError(f"{name}: there is no word in its training part")
    return Words([END, UNKNOWN, *(word for word in kept if word not in (END, UNKNOWN))])


def _rows(lines: Lines, vocabulary: Words) -> list[Row]:
    end = vocabulary.ids[END]
    return [np.array([end, *vocabulary.encode(line), end]) for line in lines if line]


def _pieces(row: Row, positions: int) -> Iterator[Row]:
    """A piece begins with the last token of the one before, so that each token but the first is predicted once."""
    for start in range(0, len(row) - 1, positions):
        yield row[start : start + positions + 1]


def _unseen(lines: dict[str, Lines], vocabulary: Words, min_count: int) -> list[str]:
    found = []
    has = "has not" if min_count == 1 else f"has less than {min_count} times"
    for part in ("valid", "test"):
        words = [word for line in lines[part] for word in line]
        types = {word for word in words if word not in vocabulary.ids}
        if types:
            share = sum(word in types for word in words) / len(words)
            found.append(
                f"{part}: {len(types):,} words that training {has} ({share:.1%} of all) became {UNKNOWN}"
            )
    return found


def in_batches(
    lengths: Sequence[int], size: int, rng: np.random.Generator, pool: int = 64
) -> list[NDArray[np.int64]]:
    """All rows once, in random batches of rows of like length, so that hardly anything is padded.

    Rows are shuffled, sorted by length within pools of so many batches, and cut into batches, which are shuffled again.
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
    """Rows as one array (rows, tokens), and where it has tokens."""
    rows = list(rows)
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(real.shape, filling, np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real
