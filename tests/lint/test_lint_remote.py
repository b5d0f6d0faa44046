"""Lint of a series elsewhere: the same findings as of the same files here, and each byte asked for once."""

import warnings

import pytest
import torch
from range_server import RangeServer
from safetensors.torch import save_file
from synthetic_series import moved, tiny_state, walk, write_series

from normgrowth import SeriesWarning, lint


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeriesWarning)
        yield


def told(findings):
    return [(f.step, f.name, f.kind, f.why, f.severity) for f in findings]


def test_each_byte_once(tmp_path):
    write_series(tmp_path, walk(6))
    with RangeServer(tmp_path) as server:
        found = lint(server.url)
        assert server.asked_twice() == 0
        assert server.sent == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert told(found) == told(lint(tmp_path))


def faulty(kind):
    states = walk(6)
    match kind:
        case "identical":
            states[4] = states[2]
        case "stale":
            states[3]["transformer.h.0.mlp.c_fc.weight"] = states[2]["transformer.h.0.mlp.c_fc.weight"]
        case "nonfinite":
            states[3]["lm_head.weight"][0, 0] = float("nan")
        case "run":
            states[3] = moved(tiny_state(9), 5)
        case "missing":
            del states[3]["lm_head.weight"]
        case "reshaped":
            states[3]["lm_head.weight"] = torch.zeros(12, 8)
        case "dtype":
            states[3] = {name: tensor.bfloat16() for name, tensor in states[3].items()}
        case "buffer":
            for state in states:
                state["transformer.h.0.attn.bias"] = torch.tril(torch.ones(16, 16))
    return states


@pytest.mark.parametrize(
    "kind", ["identical", "stale", "nonfinite", "run", "missing", "reshaped", "dtype", "buffer"]
)
def test_the_same_findings(tmp_path, kind):
    for i, state in enumerate(faulty(kind)):
        save_file({n: t.clone() for n, t in state.items()}, tmp_path / f"step_{i * 100}.safetensors")
    here = lint(tmp_path)
    assert here
    with RangeServer(tmp_path) as server:
        assert told(lint(server.url)) == told(here)


def test_one_that_cannot_be_read_is_a_finding(tmp_path):
    write_series(tmp_path, walk(4))
    path = tmp_path / "step_200.safetensors"
    with RangeServer(tmp_path) as server:
        server.fail("GET /step_200", after=2, status=404)
        found = lint(server.url)
        assert [(f.step, f.kind) for f in found] == [(200, "partial")]
    path.write_bytes(path.read_bytes()[:-5])
    with RangeServer(tmp_path) as server:
        assert [(f.step, f.kind) for f in lint(server.url)] == [(200, "partial")]
