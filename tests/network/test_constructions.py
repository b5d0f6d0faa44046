"""Networks built by hand, on all strings up to a length: their limit, and the soft network at a finite c."""

from itertools import islice, product

import pytest
import torch

from normgrowth.errors import InputError
from normgrowth.network.models.constructions import (
    anbn,
    anbncn,
    case_of_greatest,
    counter,
    dyck1,
    majority,
    recognizer,
    sensitivity,
    sufficient_scale,
)
from normgrowth.network.scaled_weights import scaled_weights


@pytest.fixture(autouse=True)
def plainly(one_thread):
    """No gradients, and one thread: products of small matrices only wait for each other."""
    with torch.no_grad():
        yield


def is_anbn(word):
    n = len(word) // 2
    return word == "a" * n + "b" * n


def is_anbncn(word):
    n = len(word) // 3
    return word == "a" * n + "b" * n + "c" * n


def is_balanced(word):
    while "()" in word:
        word = word.replace("()", "")
    return word == ""


LANGUAGES = {
    "anbn": (anbn, "ab", is_anbn),
    "anbncn": (anbncn, "abc", is_anbncn),
    "dyck1": (dyck1, "()", is_balanced),
}
LENGTHS = [
    pytest.param("anbn", range(13), id="anbn"),
    pytest.param("dyck1", range(13), id="dyck1"),
    pytest.param("anbncn", range(10), id="anbncn"),
    pytest.param("anbncn", range(10, 13), id="anbncn-long", marks=pytest.mark.slow),  # 787,320 strings
]
NETWORKS = [anbn, anbncn, dyck1, majority, counter, case_of_greatest]


def batches(alphabet, lengths, size=8192):
    """All strings over the alphabet, in batches of one length."""
    for length in lengths:
        words = map("".join, product(alphabet, repeat=length))
        while batch := list(islice(words, size)):
            yield batch


def wrong(network, alphabet, member, lengths, c=None):
    """Over all strings: how many are decided wrongly at c, or in the limit."""
    total = 0
    for words in batches(alphabet, lengths):
        tokens = network.encode(words)
        logits = network(tokens, saturated=True) if c is None else network.scaled(tokens, c)
        total += int(((logits[:, 0] > 0) != torch.tensor([member(word) for word in words])).sum())
    return total


@pytest.mark.parametrize(("language", "lengths"), LENGTHS)
def test_languages_on_all_strings_in_the_limit_and_at_a_finite_c(language, lengths):
    build, alphabet, member = LANGUAGES[language]
    network = build()
    assert wrong(network, alphabet, member, lengths) == 0
    assert wrong(network, alphabet, member, lengths, c=sufficient_scale(network, lengths[-1])) == 0


def logits_of_members(network, alphabet, member, lengths, c):
    """The absolute logit of every member at c."""
    members = [[word for word in words if member(word)] for words in batches(alphabet, lengths)]
    found = [network.scaled(network.encode(words), c)[:, 0].abs().detach() for words in members if words]
    return torch.cat(found)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_scale_matters(language):
    """The bound is safe, yet of the right size: at half of it the logits of members are rounding errors."""
    build, alphabet, member = LANGUAGES[language]
    network, lengths = build(), range(1, 9)  # the empty string is decided at any scale
    c = sufficient_scale(network, 8)
    assert 1.5 < c < 2
    assert logits_of_members(network, alphabet, member, lengths, c).min() > 0.1
    for part in (c / 2, c / 4):
        assert logits_of_members(network, alphabet, member, lengths, part).max() < 1e-15


@pytest.mark.parametrize("language", LANGUAGES)
def test_gap_and_margin_are_what_the_proof_says(language):
    build, alphabet, _ = LANGUAGES[language]
    network = build()
    for length in range(7):
        positions = length + 2
        tokens = torch.cat([network.encode(words) for words in batches(alphabet, [length])])
        margin = network(tokens, saturated=True).abs().min().item()
        assert margin == pytest.approx(network.margin(positions), rel=1e-9)

        first, second = network.layers
        hard = first.query.flatten(1).any(1)
        assert hard.tolist() == ([True, False, True] if language != "dyck1" else [True, False])
        assert not second.query.any()
        future = torch.ones(positions, positions, dtype=torch.bool).triu(1)
        scores = first.scores(network.embed(tokens))[:, hard].masked_fill(future, -torch.inf)
        top, next_one = (
            scores[..., 1:, :].topk(2, -1).values.unbind(-1)
        )  # the first position sees itself only
        assert (top - next_one).min() == network.gap


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_logit_moves_no_more_than_the_proof_allows(language):
    build, alphabet, _ = LANGUAGES[language]
    network, positions = build(), 8
    tokens = torch.cat([network.encode(words) for words in batches(alphabet, [positions - 2])])
    limit = network(tokens, saturated=True)
    for c in (0.7, 1.0, 1.3, 1.6, 2.0):
        moved = (network.scaled(tokens, c) / c**network.degree - limit).abs().max().item()
        share = (positions - 1) * torch.tensor(-(c**4) * network.gap).exp().item()
        assert 0 < moved <= sensitivity(network) * share


@pytest.mark.parametrize("build", NETWORKS)
def test_saturated_is_the_limit_and_scaling_is_scaling(build):
    network = build(max_length=6)
    alphabet = [symbol for symbol in network.symbols if symbol not in "^$"]
    tokens = network.encode(["".join(word) for word in islice(product(alphabet, repeat=6), 0, None, 7)])
    limit = network(tokens, saturated=True)
    torch.testing.assert_close(network.scaled(tokens, 4.0) / 4.0**network.degree, limit, rtol=0, atol=1e-12)
    scaled = network.scaled(tokens, 1.3)
    with scaled_weights(network, 1.3):
        torch.testing.assert_close(network(tokens), scaled)
    assert all(p.dtype == torch.float64 and p.requires_grad for p in network.parameters())
    assert not list(network.buffers())


@pytest.mark.parametrize("c", [None, 1e-3, 1.0, 1e3])
def test_mean_heads_count_at_every_c(c):
    count, more = counter(), majority()
    assert sufficient_scale(count, 12) == sufficient_scale(more, 12) == 0
    for words in batches("ab", range(13)):
        tokens = count.encode(words)
        a, b = (torch.tensor([word.count(symbol) for word in words]) for symbol in "ab")
        logits = count(tokens, saturated=True) if c is None else count.scaled(tokens, c) / c**count.degree
        assert torch.equal(logits.argmax(-1), a)
        exact = -(a[:, None] - torch.arange(13)).abs() / tokens.shape[1]
        torch.testing.assert_close(logits, exact.double(), rtol=0, atol=1e-7)
        lead = more(tokens, saturated=True) if c is None else more.scaled(tokens, c) / c**more.degree
        torch.testing.assert_close(lead[:, 0], (a - b).double() / tokens.shape[1])


def greatest(word):
    """+1, −1: the case of the letter that comes last in the alphabet; None if it is not the only one."""
    last = max(word.lower())
    found = [symbol for symbol in word if symbol.lower() == last]
    return None if len(found) > 1 else (1 if found[0].isupper() else -1)


def test_argmax_head_retrieves_the_one_that_wins():
    network = case_of_greatest("abc", max_length=6)
    c = sufficient_scale(network, 6)
    failed = 0
    for words in batches("abcABC", range(1, 7)):
        words = [word for word in words if greatest(word)]
        tokens, answer = network.encode(words), torch.tensor([greatest(word) for word in words])
        assert torch.equal(network(tokens, saturated=True)[:, 0], answer.double())
        assert torch.equal(network.scaled(tokens, c)[:, 0].sign(), answer.double())
        failed += int((network.scaled(tokens, c / 2)[:, 0].sign() != answer).sum())
    assert failed > 0


def test_an_argmax_head_averages_what_ties():
    network = case_of_greatest("abc")
    logits = network(network.encode(["CcCa", "cCAB", "ccCb"]), saturated=True)[:, 0]
    torch.testing.assert_close(logits, torch.tensor([1 / 3, 0.0, -1 / 3], dtype=torch.float64))


def test_other_languages_by_their_rules():
    network = recognizer("ab", equal=["ab"], never_more=["ba"], forbidden=["aa"])
    assert wrong(network, "ab", lambda w: w == "ab" * (len(w) // 2), range(11)) == 0


def test_bad_strings_say_what_is_wrong():
    network = anbn(max_length=4)
    for words, message in (
        (["ab", "a"], "same length"),
        (["aabbb"], "longer than max_length, 4"),
        (["ax"], "'x' is not"),
    ):
        with pytest.raises(InputError, match=message):
            network.encode(words)
