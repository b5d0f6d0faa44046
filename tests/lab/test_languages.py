"""Formal languages against their grammars, on all strings up to a length, and on long words at random."""

import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgrowth.errors import InputError
from normgrowth.network.inputs.formal_languages import END, LANGUAGES, language, language_samples, legal_mask


def blocks(letters, length):
    each, rest = divmod(length, len(letters))
    return {"".join(letter * each for letter in letters)} if rest == 0 else set()


@cache
def nested(pairs, length):
    """D → ε | (D)D."""
    if length == 0:
        return frozenset({""})
    return frozenset(
        a + inner + b + rest
        for a, b in pairs
        for inside in range(length - 1)
        for inner in nested(pairs, inside)
        for rest in nested(pairs, length - 2 - inside)
    )


def placed(length, places, chosen, others):
    """The symbols of `chosen`, in their order, at these places; those of `others` elsewhere."""
    chosen, others = iter(chosen), iter(others)
    return "".join(next(chosen if i in places else others) for i in range(length))


def shuffled(length):
    return {
        placed(length, places, u, v)
        for first in range(length + 1)
        for places in combinations(range(length), first)
        for u in nested(("()",), first)
        for v in nested(("[]",), length - first)
    }


def mostly_a(length):
    return {
        placed(length, places, "a" * number, "b" * (length - number))
        for number in range(length // 2 + 1, length + 1)
        for places in combinations(range(length), number)
    }


def even(length):
    """0 | 10*1, repeated."""
    if length == 0:
        return {""}
    last = {1: {"0"}, **{n: {"1" + "0" * (n - 2) + "1"} for n in range(2, length + 1)}}
    return {start + end for n, ends in last.items() for start in even(length - n) for end in ends}


def cancels(word, *pairs):
    while any(pair in word for pair in pairs):
        for pair in pairs:
            word = word.replace(pair, "")
    return word == ""


# name -> words of a length, by rules that make them; whether a long string is one; how far to try all strings
REFERENCE = {
    "anbn": (
        lambda n: blocks("ab", n),
        lambda w: re.fullmatch("a+b+", w) and w.count("a") == w.count("b"),
        10,
    ),
    "anbncn": (
        lambda n: blocks("abc", n),
        lambda w: re.fullmatch("a+b+c+", w) and w.count("a") == w.count("b") == w.count("c"),
        9,
    ),
    "dyck1": (lambda n: nested(("()",), n), lambda w: w and cancels(w, "()"), 10),
    "dyck2": (lambda n: nested(("()", "[]"), n), lambda w: w and cancels(w, "()", "[]"), 8),
    "shuffle-dyck": (
        shuffled,
        lambda w: w and cancels(re.sub(r"[\[\]]", "", w), "()") and cancels(re.sub("[()]", "", w), "[]"),
        8,
    ),
    "majority": (mostly_a, lambda w: w.count("a") > w.count("b"), 10),
    "parity": (even, lambda w: w and w.count("1") % 2 == 0, 10),
}
SHORTEST = {"anbncn": 3, "majority": 1, "parity": 1}  # the others: 2
every_language = pytest.mark.parametrize("name", LANGUAGES)
names = st.sampled_from(list(LANGUAGES))


@cache
def words(name, longest):
    return {word for n in range(1, longest + 1) for word in REFERENCE[name][0](n)}


def strings(name, longest):
    for n in range(longest + 1):
        yield from map("".join, product(language(name).alphabet, repeat=n))


@cache
def followers(name, longest):
    """prefix -> what follows it in some word of at most `longest` symbols."""
    found = defaultdict(set)
    for word in words(name, longest):
        for i in range(len(word) + 1):
            found[word[:i]].add(word[i] if i < len(word) else END)
    return found


def some_word(name, longest, seed):
    return language(name).sample(np.random.default_rng(seed), longest)


def test_every_language_has_a_reference():
    assert LANGUAGES.keys() == REFERENCE.keys()
    assert all(spoken.name == name == language(name).name for name, spoken in LANGUAGES.items())


@every_language
def test_contains_what_the_grammar_makes_and_nothing_else(name):
    longest = REFERENCE[name][2]
    assert {word for word in strings(name, longest) if language(name).contains(word)} == words(name, longest)


@every_language
def test_words_are_counted(name):
    for length in range(11):
        assert language(name).words(length) == len([w for w in words(name, 10) if len(w) == length])


def test_numbers_of_words_are_those_of_the_docstring():
    counted = {name: len(words(name, 10)) for name in LANGUAGES}
    assert counted | {"anbn": len(words("anbn", 20)), "anbncn": len(words("anbncn", 20))} == {
        "anbn": 10,
        "anbncn": 6,
        "dyck1": 64,
        "dyck2": 1618,
        "shuffle-dyck": 6214,
        "majority": 848,
        "parity": 1023,
    }


@every_language
@pytest.mark.parametrize("longest", [0, 1, 2, 3, 5, 6])
def test_legal_is_what_follows_in_some_word_that_is_not_too_long(name, longest):
    for prefix in strings(name, longest + 1):
        assert language(name).legal(prefix, longest) == followers(name, longest).get(prefix, set()), prefix


@every_language
def test_legal_without_a_longest_word(name):
    """A prefix of 3 symbols and one more can be completed by 12 symbols in all, if at all."""
    for prefix in strings(name, 3):
        assert language(name).legal(prefix) == followers(name, 12).get(prefix, set()), prefix


@every_language
@pytest.mark.parametrize("longest", [4, 6, None])
def test_mask_is_legal_row_by_row(name, longest):
    columns = (*language(name).alphabet, END)
    for word in strings(name, 5):
        rows = [language(name).legal(word[:i], longest) for i in range(len(word) + 1)]
        mask = legal_mask(name, word, longest)
        assert mask.dtype == bool
        assert mask.tolist() == [[symbol in row for symbol in columns] for row in rows]


@every_language
def test_symbols_from_elsewhere_belong_to_no_word(name):
    word = some_word(name, 10, seed=0)
    for odd in ((*word, "x"), ("x", *word), (*word, END)):
        assert not language(name).contains(odd)
        assert language(name).legal(odd) == frozenset()
        assert not legal_mask(name, odd, 20)[-1].any()


@pytest.mark.parametrize("name", ["dyck1", "dyck2", "shuffle-dyck"])
def test_mask_takes_one_pass_however_deep(name):
    taken = []
    spoken = language(name)
    step = spoken.machine.step
    counted = replace(spoken.machine, step=lambda state, k: (taken.append(k), step(state, k))[1])
    depth = 5000
    rows = [*replace(spoken, machine=counted).legal_rows("(" * depth + ")" * depth, 2 * depth)]
    assert len(taken) <= len(rows) * (len(spoken.alphabet) + 1)
    assert rows[0] == [*(symbol in "([" for symbol in spoken.alphabet), False]
    assert rows[depth] == [*(symbol == ")" for symbol in spoken.alphabet), False]
    assert rows[-1] == [False] * len(spoken.alphabet) + [True]


@given(names, st.integers(3, 120), st.integers(0, 2**32), st.data())
def test_long_words_and_their_neighbors(name, longest, seed, data):
    word = some_word(name, longest, seed)
    assert 0 < len(word) <= longest
    assert REFERENCE[name][1]("".join(word))
    assert language(name).contains(word)

    mask = legal_mask(name, word, longest)
    path = [language(name).alphabet.index(symbol) for symbol in word] + [-1]
    assert mask[np.arange(len(path)), path].all()

    i, j = (data.draw(st.integers(0, len(word) - 1)) for _ in range(2))
    swapped = [word[j] if k == i else word[i] if k == j else word[k] for k in range(len(word))]
    changed = [*word[:i], data.draw(st.sampled_from(language(name).alphabet)), *word[i + 1 :]]
    for neighbor in (swapped, changed, word[:i] + word[i + 1 :]):
        assert language(name).contains(neighbor) == bool(REFERENCE[name][1]("".join(neighbor)))


@given(names, st.lists(st.integers(0, 3), max_size=40), st.integers(1, 80))
def test_completions_add_up_over_the_next_symbol(name, choices, more):
    """With the completions by nothing, which say whether a word may end, this defines the numbers."""
    machine, size = language(name).machine, len(language(name).alphabet)
    state = machine.start
    for k in choices:
        after = machine.step(state, k % size)
        state = state if after is None else after
    after = [machine.step(state, k) for k in range(size)]
    assert machine.completions(state, more) == sum(
        machine.completions(then, more - 1) for then in after if then is not None
    )
    assert machine.completions(state, 0) == (machine.shortest(state) == 0)
    numbers = [machine.completions(state, n) for n in range(machine.shortest(state) + 1)]
    assert [n for n, number in enumerate(numbers) if number] == [machine.shortest(state)]


def chi_square_is_small(counts, cases):
    """Within 5 standard deviations of its mean, if all cases are equally likely."""
    assert counts.keys() <= set(cases)
    expected = sum(counts.values()) / len(cases)
    statistic = sum((counts[case] - expected) ** 2 for case in cases) / expected
    freedom = len(cases) - 1
    return statistic <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("anbn", 8),
        ("anbncn", 9),
        ("dyck1", 8),
        ("dyck2", 6),
        ("shuffle-dyck", 4),
        ("majority", 6),
        ("parity", 5),
    ],
)
def test_lengths_are_uniform_and_so_are_the_words_of_a_length(name, length):
    drawn = Counter(map("".join, language_samples(name, 12_000, length, seed=1)))
    lengths = Counter()
    for word, times in drawn.items():
        lengths[len(word)] += times
    assert chi_square_is_small(lengths, {len(word) for word in words(name, length)})
    for n in lengths:
        of_this_length = [word for word in words(name, n) if len(word) == n]
        assert chi_square_is_small(Counter({w: t for w, t in drawn.items() if len(w) == n}), of_this_length)


def test_chi_square_sees_symbols_drawn_evenly_among_the_legal_ones():
    """The sampler that does not count: ()()()() is drawn four times as often as ((()))()."""
    rng = np.random.default_rng(0)
    drawn = Counter()
    for _ in range(3000):
        word = ""
        while len(word) < 8:
            word += rng.choice(sorted(language("dyck1").legal(word, 8) - {END}))
        drawn[word] += 1
    assert not chi_square_is_small(drawn, nested(("()",), 8))


@every_language
def test_a_seed_says_all(name):
    some = language_samples(name, 50, 30, seed=7)
    assert some == language_samples(name, 50, 30, seed=7)
    assert some[:20] == language_samples(name, 20, 30, seed=7)
    assert some != language_samples(name, 50, 30, seed=8)


def test_the_same_words_everywhere():
    assert list(map("".join, language_samples("dyck2", 3, 12, seed=0))) == ["((([])))[]()", "([()])()", "[]"]


def test_unknown_names_are_told_the_known_ones():
    for ask in (
        language,
        lambda name: language_samples(name, 1, 10, 0),
        lambda name: legal_mask(name, "ab", 10),
    ):
        with pytest.raises(InputError, match=r"unknown language 'dyck3'.* anbn, anbncn, dyck1, .*parity"):
            ask("dyck3")


@every_language
def test_no_room_for_any_word(name):
    shortest = SHORTEST.get(name, 2)
    for longest in (shortest - 1, -1):
        with pytest.raises(
            InputError, match=f"{name} has no word of at most {longest} .* the shortest has {shortest}$"
        ):
            language_samples(name, 1, longest, seed=0)
    assert len(language_samples(name, 1, shortest, seed=0)[0]) == shortest


def test_loads_without_torch():
    code = "import sys, normgrowth.network.inputs.formal_languages; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
