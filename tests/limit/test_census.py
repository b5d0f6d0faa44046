"""A sample of the census (`make census`): no architecture may be wrong without saying so."""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from limit.census import examine, examine_narrow, judged, smallest_error
from limit.comparison import FACTORS, Row, measure
from limit.text_models import SETTINGS, candidates, model_class
from torch import nn

from normgrowth.limit.saturated import saturated

RECORDS = Path(__file__).parents[2] / "benchmarks" / "census.json"
FAST = ["llama", "deepseek_v3", "t5"]
SAMPLE = [
    "afmoe",
    "bart",
    "bloom",
    "canine",
    "cohere2",
    "deberta-v2",
    "deepseek_v4",
    "diffllama",
    "doge",
    "ernie4_5_moe",
    "flaubert",
    "gemma3n_text",
    "gpt_oss",
    "hy_v4",
    "laguna",
    "longt5",
    "minimax_m2",
    "mixtral",
    "nystromformer",
    "olmo2",
    "phimoe",
    "qwen3_moe",
    "reformer",
    "step3p5",
    "xlnet",
    "zaya",
]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),
]  # those of transformers


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", FAST)
def test_some_architectures_are_right(name, setting):
    assert examine(name, setting)["outcome"] == "right"


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", FAST)
def test_some_architectures_are_right_in_16_bits(name, autocast):
    assert examine_narrow(name, SETTINGS[0], torch.bfloat16, autocast)["outcome"] == "right"


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("name", SAMPLE)
def test_no_architecture_is_wrong_without_saying_so(name, setting):
    records = [examine(name, setting)]
    records += [examine_narrow(name, setting, dtype, False) for dtype in (torch.bfloat16, torch.float16)]
    records.append(examine_narrow(name, setting, torch.bfloat16, True))
    assert not [record for record in records if record["outcome"] in ("wrong", "crashed", "not built")]


def row(sizes):
    return Row("", 0, 0, 1, 1.0, cosines=[size**2 for size in sizes], sizes=sizes, norms=list(FACTORS))


def test_outcomes():
    limit = saturated(nn.Linear(1, 1))
    assert judged([row([0.5, 0.1, 1e-3, 1e-5, 1e-7, 0.2, 1.0])], limit) == "right"
    assert judged([row([0.9, 0.8, 0.7, 0.4, 0.2, 0.1, 0.05])], limit) == "converging"
    assert judged([row([0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6])], limit) == "wrong"
    limit.doubtful = 1
    assert judged([row([0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6])], limit) == "undecided"


def test_what_is_not_a_number_agrees_with_nothing():
    """A network whose ratios are 0/0 at large c, and a limit that is not a number."""
    limit, nan = saturated(nn.Linear(1, 1)), float("nan")
    assert judged([row([0.5, 0.1, nan, nan, nan, nan, nan])], limit) == "wrong"
    assert judged([row([0.5, 1e-3, nan, nan, nan, nan, nan])], limit) == "right"
    assert judged([row([nan] * 7)], limit) == "not verified"
    here = torch.ones(1, 2, dtype=torch.bool)
    for value, coefficient in ((1.0, nan), (nan, 1.0)):
        found = Row("", 0, 0, Fraction(0), 1.0)
        measure(found, here, torch.full((1, 2), coefficient), torch.full((1, 2), value), 10.0)
        assert math.isinf(smallest_error(found))


def test_what_is_a_text_architecture():
    kinds = {name: model_class(name) for name in ("llama", "siglip_text_model", "vit", "bart", "lxmert")}
    assert [name for name, kind in kinds.items() if kind is None] == ["vit", "lxmert"]
    found = candidates()
    assert "llama" in found
    assert "vit" not in found


def test_the_records_have_nothing_wrong():
    records = json.loads(RECORDS.read_text(encoding="utf-8"))["records"]
    assert len({record["architecture"] for record in records}) > 250
    wrong = [record for record in records if record["outcome"] in ("wrong", "crashed")]
    assert not wrong
