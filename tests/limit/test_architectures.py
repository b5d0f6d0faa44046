"""The exact limit of many architectures, against the networks themselves with their weights times c.

Shown for every output of every submodule: its degree, its direction, its size. Lower orders may rule up to a
large c, and at very large c float64 makes ties where there are none, so each is held to the best of the factors
from 10 to 10^7. None is left out, but for patterns of attention that the limit itself says it leaves open.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from limit.architectures import BRANCHES, EAGER_ONLY, IMAGE, MODELS, PLAIN, Case, build, cases
from limit.comparison import compare

COSINE, SIZE, SLOPE = 1e-6, 1e-5, 0.01

# Degrees worked out by hand: of the output, and of what the second block adds by attention and feedforward.
# A norm with a gain has degree 1, values and their projection make attention 3; so is a feedforward layer,
# and a gated one 5. A head adds 1.
POST_NORM = 1, 3, 3
GATED = 1, 3, 5
DEGREES = {
    **dict.fromkeys(["BERT", "RoBERTa", "ALBERT", "DistilBERT", "ELECTRA", "DeBERTa-v2"], POST_NORM),
    **dict.fromkeys(["BART", "mBART", "Pegasus", "Marian", "T5", "T5 encoder"], (1, 3, 3)),
    **dict.fromkeys(["GPT-2", "GPT-Neo", "GPT-NeoX", "GPT-J", "OPT", "BLOOM", "MPT", "Falcon"], (1, 3, 3)),
    **dict.fromkeys(["Phi", "Starcoder2", "ViT"], (1, 3, 3)),
    **dict.fromkeys(["BERT masked LM", "GPT-2 LM"], (2, 3, 3)),
    **dict.fromkeys(["ModernBERT", "T5 encoder, gated", "Llama", "Mistral", "Qwen2", "Qwen3"], GATED),
    **dict.fromkeys(["Gemma", "Phi-3", "StableLM", "Cohere", "Granite"], GATED),
    **dict.fromkeys(["Gemma 2", "Gemma 3", "OLMo 2"], (1, 1, 1)),  # a norm behind each branch
    "Llama LM": (2, 3, 5),
    "OLMo": (0, 2, 3),  # norms without gains
    "Persimmon": (1, 3, 5),  # relu squared
    "DINOv2": (1, 4, 4),  # a scale behind each branch
    "XLNet": (1, None, 3),
    "nn.TransformerEncoder, post-norm": POST_NORM,
    "nn.TransformerEncoder, pre-norm": (3, 3, 3),
    "nn.LSTM": (0, None, None),  # gates become steps, the state a sign
    "nn.GRU": (0, None, None),
}

FAST = [Case(name, padding=name not in IMAGE) for name in MODELS]
FAST += [Case(name, "sdpa") for name in MODELS if name not in EAGER_ONLY | PLAIN]
EVERY = [case for name in MODELS for case in cases(name)]
DEEP_TIES = [Case("BERT masked LM", seed=1), Case("ELECTRA", seed=2)]
SLOW = [case for case in EVERY if case not in FAST]
SLOW += [again for case in EVERY if (again := replace(case, seed=1)) not in DEEP_TIES]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # DeBERTa
]


def check(case: Case) -> None:
    found = compare(case, **case.options)
    limit = found.limit
    assert [(o.module, o.degree) for o in limit.outputs] == found.main_degrees
    output, *branches = DEGREES[case.model]
    assert limit.degrees[""] == output
    for module, degree in zip(BRANCHES[case.model], branches, strict=True):
        assert module is None or limit.degrees[module] == degree, module
    left_open = [row for row in found.rows if row.doubt]
    assert all(row.degree == 0 for row in left_open), "a pattern of attention has degree 0"
    assert not left_open or limit.undecided
    wrong = [row for row in found.rows if not row.doubt and not row.agrees(COSINE, SIZE, SLOPE)]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("case", FAST, ids=str)
def test_every_output_of_every_submodule(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_every_output_of_every_submodule_in_every_way(case):
    check(case)


WITH_PATTERNS = [case for case in EVERY if case.options]


def keys_are_right(case: Case) -> bool:
    """With the leading order alone many ties are left open: how their keys share, not which keys they are."""
    found = compare(case, orders=1, **case.options)
    return all(row.agrees(COSINE, SIZE, SLOPE) for row in found.rows)


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_PATTERNS, ids=str)
def test_keys_of_patterns_that_are_left_open(case):
    assert keys_are_right(case)


@pytest.mark.parametrize("case", DEEP_TIES, ids=str)
def test_ties_in_a_lower_order(case):
    """Keys equal in two orders are told apart by the third, and not by the rounding of the second."""
    check(case)


def test_ties_in_the_leading_order():
    """Equal keys whose scores rounding parts."""
    assert keys_are_right(Case("Marian"))


@pytest.mark.parametrize("name", [name for name in MODELS if name not in PLAIN])
def test_which_models_have_fused_attention(name):
    assert build(Case(name))._supports_sdpa == (name not in EAGER_ONLY)


def test_degrees_are_exact():
    limit = compare(Case("nn.TransformerEncoder, pre-norm")).limit
    assert all(isinstance(degree, Fraction) for degree in limit.degrees.values())
