"""Formal languages as corpora: words to train on, and at each place exactly what may follow.

    anbn           aⁿbⁿ                            dyck1, dyck2   well nested brackets, of one and of two types
    anbncn         aⁿbⁿcⁿ                          shuffle-dyck   ( ) and [ ], each type balanced by itself
    majority       more a than b                   parity         an even number of 1

Each is a deterministic machine that knows two things of a state: the length of the `shortest` completion, which
decides membership and legality, and the number of `completions` of each length, which makes sampling uniform
without rejection. The machines do not mind the empty word; `Language` leaves it out.

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
BITS = 53  # of each random number: probabilities are right to 2⁻⁵³
State = Any  # of a machine: what it remembers of a prefix; None if no word begins so


@dataclass(frozen=True)
class Machine:
    """Reads symbols by their number in the alphabet. It stays alive only where a completion exists."""

    start: State
    step: Callable[[State, int], State | None]
    shortest: Callable[[State], int]  # completion: 0 if a word may end here
    completions: Callable[[State, int], int]  # how many, with exactly so many symbols


@dataclass(frozen=True)
class Language:
    """A set of non-empty words, with an order of its symbols."""

    name: str
    alphabet: tuple[str, ...]
    machine: Machine

    def contains(self, word: Sequence[str]) -> bool:
        return END in self.legal(word)

    def legal(self, prefix: Sequence[str], longest: int | None = None) -> frozenset[str]:
        """The symbols after which the prefix can still become a word, and END if it is one.

        longest: only words with at most so many symbols count. Empty if none of them begins like this.
        """
        *_, row = self.legal_rows(prefix, longest)
        return frozenset(symbol for symbol, may in zip((*self.alphabet, END), row, strict=True) if may)

    def legal_rows(self, word: Sequence[str], longest: int | None = None) -> Iterator[list[bool]]:
        """After each prefix, the empty one first: may this symbol follow? In the alphabet's order, then END."""
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
        """How many have exactly this length."""
        return self.machine.completions(self.machine.start, length) if length > 0 else 0

    def sample(self, rng: np.random.Generator, longest: int) -> tuple[str, ...]:
        """A length, uniform among those up to `longest` that words have; then a word, uniform among those.

        Each symbol is drawn in proportion to the completions that it leaves.
        """
        lengths = [n for n in range(1, longest + 1) if self.words(n)]
        if not lengths:
            least = next(n for n in itertools.count(1) if self.words(n))
            raise InputError(
                f"{self.name} has no word of {longest} symbols or less; the shortest has {least}"
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
        raise InputError(f"language {name!r} is unknown; choose one of {', '.join(LANGUAGES)}")
    return LANGUAGES[name]


def sentences(name: str, count: int, longest: int, seed: int) -> list[tuple[str, ...]]:
    """`count` independent samples of the language; the same for a seed everywhere.

    They repeat where words are few: there are ⌊longest/2⌋ in anbn (10 up to 20 symbols), ⌊longest/3⌋ in anbncn;
    up to 10 symbols 64 in dyck1, 1,618 in dyck2, 6,214 in shuffle-dyck, 848 in majority and 1,023 in parity.
    Lengths are uniform, so that short words repeat in every language.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    spoken = language(name)
    return [spoken.sample(rng, longest) for _ in range(count)]


def legal_mask(name: str, word: Sequence[str], longest: int | None) -> NDArray[np.bool_]:
    """[len(word) + 1, len(alphabet) + 1]: `legal` after each prefix, in one pass; END is the last column."""
    return np.array([*language(name).legal_rows(word, longest)])


def _blocks(letters: int) -> Machine:
    """aⁿbⁿ…: the state is (n, length), n being the number of a. Letter k stands at places kn to (k + 1)n − 1."""

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
    """Symbols 2t and 2t + 1 open and close type t. The state is (depth, stack); the stack (type, what is below)."""

    def step(state: tuple[int, State], k: int) -> tuple[int, State] | None:
        (depth, stack), (kind, closes) = state, divmod(k, 2)
        if not closes:
            return depth + 1, (kind, stack)
        return (depth - 1, stack[1]) if stack and stack[0] == kind else None

    def completions(state: tuple[int, State], more: int) -> int:
        depth, _ = state  # (more − depth)/2 brackets will be opened; where, and of which type
        return _half_line(depth, more) * types ** (max(more - depth, 0) // 2)

    return Machine((0, ()), step, lambda state: state[0], completions)


def _shuffle_step(depths: tuple[int, int], k: int) -> tuple[int, int] | None:
    change = -1 if k % 2 else 1
    x, y = (depths[0] + change, depths[1]) if k < 2 else (depths[0], depths[1] + change)
    return (x, y) if x >= 0 and y >= 0 else None


def _line(x: int, steps: int) -> int:
    """Walks of ±1 from x to 0."""
    return 0 if (steps + x) % 2 else comb(steps, (steps + abs(x)) // 2)


@lru_cache(1 << 16)
def _half_line(x: int, steps: int) -> int:
    """Those that are never negative. The others end at −2 if they are mirrored at −1 from there on."""
    return _line(x, steps) - _line(x + 2, steps)


@lru_cache(1 << 16)
def _quarter_plane(x: int, y: int, steps: int) -> int:
    """Walks of unit steps from (x, y) to (0, 0), neither coordinate ever negative: mirrored likewise, twice.

    In the whole plane x + y and x − y are two independent walks on the line.
    """

    def plane(x: int, y: int) -> int:
        return _line(x + y, steps) * _line(x - y, steps)

    return plane(x, y) - plane(x + 2, y) - plane(x, y + 2) + plane(x + 2, y + 2)


@lru_cache(1 << 16)
def _to_positive(x: int, steps: int) -> int:
    """Walks of ±1 from x to anywhere above 0.

    Mirrored at x > 0, ends at 0 and below become ends at 2x and above: twice the number of ends above 0 is that
    of all walks and of those with 0 < end < 2x.
    """
    if x <= 0:  # mirrored at ½: the walks from 1 − x that end at 0 or below
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
