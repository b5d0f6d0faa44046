"""The example of a rule of one's own in docs/saturated_network.md runs, and its limit is that of the scaled network."""

from fractions import Fraction
from pathlib import Path

import torch

from normgrowth.limit import RULES
from normgrowth.network.scaled_weights import scaled_weights

PAGE = Path(__file__).parents[2] / "docs" / "saturated_network.md"


def test_the_example_of_a_rule(capsys, own_random_numbers):
    section = PAGE.read_text().split("## An operation of your own")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    names = {}
    try:
        exec(compile(code, str(PAGE), "exec"), names)
        assert capsys.readouterr().out.strip() == code.strip().rpartition("# ")[2]
        model, limit = names["Network"]().double(), names["limit"]
        limit.model = model
        x = torch.randn(2, 4).double()
        found = limit(x)
    finally:
        del RULES["mylib::signed_sqrt"]
    assert limit.degrees[""] == Fraction(1, 2)
    with torch.no_grad(), scaled_weights(model, 2.0**40):
        torch.testing.assert_close(found, model(x) / 2.0**20, rtol=1e-6, atol=0)
