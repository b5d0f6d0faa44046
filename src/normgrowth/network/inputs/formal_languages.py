"""Formal languages as corpora: words to train on, and the exact set of symbols that may follow each prefix.

    anbn           aⁿbⁿ                            dyck1, dyck2   well nested brackets, of one and of two types
    anbncn         aⁿbⁿcⁿ                          shuffle-dyck   ( ) and [ ], each type balanced by itself
    majority       more a than b                   parity         an even number of 1

Each is a deterministic machine that provides two functions of a state: the length of the `shortest` completion, which
decides membership and legality, and the number of `completions` of each length, which allows uniform sampling without
rejection. The machines accept the empty word; `Language` excludes it.

    language("dyck1").legal("(()", longest=4)    # {")"}: there is no room for another (
    words = sentences("dyck2", count=1000, longest=40, seed=0)
    legal_mask("dyck2", words[0], longest=40)    # [len(words[0]) + 1, 5], the last column is END
"""

import itertools
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrowth.errors import InputError

END = "<eos>"
BITS = 53  # bits of each random number: probabilities are exact to 2⁻⁵³
State = Any  # state of a machine after a prefix; None if no word starts with the prefix


@dataclass(frozen=True)
class Machine:
    """Reads symbols by their index in the alphabet. The state is None if the prefix has no completion."""

    start: State
    step: Callable[[State, int], State | None]
    shortest: Callable[[State], int]  # length of the shortest completion: 0 if a word may end here
    completions: Callable[[State, int], int]  # number of completions with exactly this many symbols


@dataclass(frozen=True)
class Language:
    """A set of non-empty words over an ordered alphabet."""

    name: str
    alphabet: tuple[str, ...]
    machine: Machine

    def contains(self, word: Sequence[str]) -> bool:
        return END in self.legal(word)

    def legal(self, prefix: Sequence[str], longest: int | None = None) -> frozenset[str]:
        """Return the symbols that may follow a prefix, including END if the prefix is a word.

        longest: consider only words with at most this many symbols. The result is empty if no such word has the prefix.
        """
        *_, row = self.legal_rows(prefix, longest)
        return frozenset(symbol for symbol, may in zip((*self.alphabet, END), row, strict=True) if may)

    def legal_rows(self, word: Sequence[str], longest: int | None = None) -> Iterator[list[bool]]:
        """Yield for each prefix, from the empty one on, whether each symbol of the alphabet and END may follow."""
        step, shortest = self.machine.step, self.machine.shortest
        number = {symbol: i for i, symbol in enumerate(self.alphabet)}
        state = self.machine.start
        for i in range(len(word) + 1):
            if i and state is not None:
                state = step(state, number[word[i - 1]]) if word[i - 1] in number else None
            if state is None:
                yield [False] * (len(number) + 1)
                continue
            room = inf if longest is None else longest - i
            after = [step(state, k) for k in number.values()]
            row = [then is not None and 1 + shortest(then) <= room for then in after]
            yield [*row, i > 0 and room >= 0 and shortest(state) == 0]

    def words(self, length: int) -> int:
        """Return the number of words of exactly this length."""
        return self.machine.completions(self.machine.start, length) if length > 0 else 0

    def sample(self, rng: np.random.Generator, longest: int) -> tuple[str, ...]:
        """Return a random word: first a uniform length among those of words up to `longest`, then a uniform word.

        Each symbol is drawn in proportion to its number of completions.
        """
        lengths = [n for n in range(1, longest + 1) if self.words(n)]
        if not lengths:
            least = next(n for n in itertools.count(1) if self.words(n))
            raise InputError(
                f"{self.name} has no word of at most {longest} symbols; the shortest has {least}"
            )
        length = lengths[rng.integers(len(lengths))]
        state, word = self.machine.start, []
        for i, u in enumerate(rng.integers(1 << BITS, size=length).tolist(), 1):
            after = [self.machine.step(state, k) for k in range(len(self.alphabet))]
            ways = [0 if then is None else self.machine.completions(then, length - i) for then in after]
            *below, total = itertools.accumulate(ways)
            chosen = bisect(below, u * total >> BITS)  # the first k with more than u·total/2⁵³ ways up to it
            state = after[chosen]
            word.append(self.alphabet[chosen])
        return tuple(word)


def language(name: str) -> Language:
    if name not in LANGUAGES:
        raise InputError(f"unknown language {name!r}; known: {', '.join(LANGUAGES)}")
    return LANGUAGES[name]


def language_samples(name: str, count: int, longest: int, seed: int) -> list[tuple[str, ...]]:
    """Return `count` independent samples of the language; a seed gives the same samples on every machine.

    Samples repeat if there are few words: anbn has ⌊longest/2⌋ words (10 up to 20 symbols) and anbncn ⌊longest/3⌋. Up
    to 10 symbols, dyck1 has 64, dyck2 1,618, shuffle-dyck 6,214, majority 848 and parity 1,023. Lengths are uniform, so
    short words repeat in every language.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    spoken = language(name)
    return [spoken.sample(rng, longest) for _ in range(count)]


def legal_mask(name: str, word: Sequence[str], longest: int | None) -> NDArray[np.bool_]:
    """Return `legal` after each prefix as an array [len(word) + 1, len(alphabet) + 1]; END is the last column."""
    return np.array([*language(name).legal_rows(word, longest)])


def _blocks(letters: int) -> Machine:
    """aⁿbⁿ…: the state is (n, length), where n is the number of a. Letter k is at positions kn to (k + 1)n − 1."""

    def step(state: tuple[int, int], k: int) -> tuple[int, int] | None:
        n, length = state
        if k == 0:
            return (n + 1, length + 1) if n == length else None
        return (n, length + 1) if k * n <= length < (k + 1) * n else None

    def completions(state: tuple[int, int], more: int) -> int:
        n, length = state
        excess = length + more - letters * n
        return int(excess >= 0 and excess % letters == 0 if n == length else excess == 0)

    return Machine((0, 0), step, lambda state: letters * state[0] - state[1], completions)


def _nested(types: int) -> Machine:
    """Symbols 2t and 2t + 1 open and close type t. The state is (depth, stack); a stack is (type, rest of stack)."""

    def step(state: tuple[int, State], k: int) -> tuple[int, State] | None:
        (depth, stack), (kind, closes) = state, divmod(k, 2)
        if not closes:
            return depth + 1, (kind, stack)
        return (depth - 1, stack[1]) if stack and stack[0] == kind else None

    def completions(state: tuple[int, State], more: int) -> int:
        depth, _ = state  # (more − depth)/2 brackets are still opened: count positions and types
        return _half_line(depth, more) * types ** (max(more - depth, 0) // 2)

    return Machine((0, ()), step, lambda state: state[0], completions)


def _shuffle_step(depths: tuple[int, int], k: int) -> tuple[int, int] | None:
    change = -1 if k % 2 else 1
    x, y = (depths[0] + change, depths[1]) if k < 2 else (depths[0], depths[1] + change)
    return (x, y) if x >= 0 and y >= 0 else None


def _line(x: int, steps: int) -> int:
    """Return the number of walks with steps of ±1 from x to 0."""
    return 0 if (steps + x) % 2 else comb(steps, (steps + abs(x)) // 2)


@lru_cache(1 << 16)
def _half_line(x: int, steps: int) -> int:
    """Return the number of these walks that are never negative, by the reflection principle.

    Reflected at −1, the other walks end at −2.
    """
    return _line(x, steps) - _line(x + 2, steps)


@lru_cache(1 << 16)
def _quarter_plane(x: int, y: int, steps: int) -> int:
    """Return the number of walks of unit steps from (x, y) to (0, 0) without negative coordinates, by two reflections.

    In the whole plane, x + y and x − y are two independent walks on the line.
    """

    def plane(x: int, y: int) -> int:
        return _line(x + y, steps) * _line(x - y, steps)

    return plane(x, y) - plane(x + 2, y) - plane(x, y + 2) + plane(x + 2, y + 2)


@lru_cache(1 << 16)
def _to_positive(x: int, steps: int) -> int:
    """Return the number of walks with steps of ±1 from x to any end above 0.

    Reflected at x > 0, ends at 0 and below become ends at 2x and above. So twice the number of walks with an end above
    0 is the number of all walks plus the number with 0 < end < 2x.
    """
    if x <= 0:  # reflected at ½: the walks from 1 − x that end at 0 or below
        return 2**steps - _to_positive(1 - x, steps)
    return (2**steps + sum(_line(change, steps) for change in range(1 - x, x))) // 2


_SHUFFLED = Machine((0, 0), _shuffle_step, sum, lambda depths, more: _quarter_plane(*depths, more))
_MAJORITY = Machine(0, lambda lead, k: lead + (-1 if k else 1), lambda lead: max(0, 1 - lead), _to_positive)
_PARITY = Machine(
    0, lambda odd, k: odd ^ k, lambda odd: odd, lambda odd, more: 1 << more - 1 if more else 1 - odd
)

LANGUAGES: dict[str, Language] = {
    name: Language(name, tuple(alphabet), machine)
    for name, alphabet, machine in (
        ("anbn", "ab", _blocks(2)),
        ("anbncn", "abc", _blocks(3)),
        ("dyck1", "()", _nested(1)),
        ("dyck2", "()[]", _nested(2)),
        ("shuffle-dyck", "()[]", _SHUFFLED),
        ("majority", "ab", _MAJORITY),
        ("parity", "01", _PARITY),
    )
}
