"""The claims of Figures 1 and 5 on a traced series: a small T5 in TensorFlow's format, from checkpoints to verdicts."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from bundle_files import t5_walk, write_bundle, write_t5_series
from range_server import RangeServer

import normgrowth as ng
from normgrowth.cli.main import main
from normgrowth.errors import InputError
from normgrowth.paper.claim import judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.paper_figures import figures
from normgrowth.paper.t5_series import PublishedT5, TracedT5, traced_t5

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = tuple(range(1000, 13_000, 1000))
T5_CLAIMS = (
    *("norm-sqrt", "norm-intercept", "norm-layers", "direction-consecutive", "direction-converges"),
    *("alignment", "misaligned", "step-size", "step-size-encoder", "step-size-decoder"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_t5_series(tmp_path_factory.mktemp("t5"), STEPS, layers=4)


@pytest.fixture(scope="module")
def series(folder, tmp_path_factory):
    return traced_t5(folder, tmp_path_factory.mktemp("trace") / "t5")


def stacked(stack: str) -> np.ndarray:
    """The blocks of a stack at each step as float64 vectors, the obvious way."""
    prefix = {"both": ("encoder/block", "decoder/block")}.get(stack, (f"{stack}/block",))
    return np.array(
        [
            np.concatenate(
                [v.ravel() for n, v in state.items() if n.startswith(prefix) and "_slot_" not in n]
            )
            for state in t5_walk(STEPS, layers=4)
        ],
        np.float64,
    )


@pytest.mark.parametrize("stack", ["both", "encoder", "decoder"])
def test_sums_of_stacks_are_those_of_the_weights(series, stack):
    weights, found = stacked(stack), series.sums(stack)
    delta = np.diff(weights, axis=0)
    np.testing.assert_allclose(found.norms()["norm"], np.linalg.norm(weights, axis=1), rtol=1e-12)
    steps = found.steps()
    np.testing.assert_allclose(steps["step_size"], np.linalg.norm(delta, axis=1), rtol=1e-10)
    dots = np.einsum("ij,ij->i", delta, weights[:-1])
    expected = dots / np.linalg.norm(delta, axis=1) / np.linalg.norm(weights[:-1], axis=1)
    np.testing.assert_allclose(steps["alignment"], expected, atol=1e-9)
    assert (found.norms()["norm_rounding"] == 0).all()
    np.testing.assert_array_equal(found.norms()["step"], STEPS)


def test_layers_and_cosines(series):
    cosine, ends = series.cosines()
    weights = stacked("both")
    norms = np.linalg.norm(weights, axis=1)
    expected = np.einsum("ij,ij->i", weights[1:], weights[:-1]) / norms[1:] / norms[:-1]
    np.testing.assert_allclose(cosine, expected, atol=1e-9)
    assert len(ends) == len(series.encoder_norms()) == 4
    assert list(series.encoder_norms()) == [1, 2, 3, 4]


def test_claims_are_judged_on_the_traced_series(series):
    evidence = Evidence(t5=series)
    for name in T5_CLAIMS:
        here, there = judge(CLAIMS[name], evidence), judge(CLAIMS[name], Evidence())
        assert here.data == series.source
        assert there.data == CLAIMS[name].source
        assert here.verdict != "not measured here", here.reason
        assert here.measured != there.measured
    growth = judge(CLAIMS["norm-sqrt"], evidence)
    assert growth.verdict == "holds"  # a random walk: its squared norm grows as t
    aligned = judge(CLAIMS["misaligned"], evidence).measured
    assert aligned["share of growth by steps: total"] == pytest.approx(1, abs=0.2)


def test_a_series_with_lags_is_judged_by_distant_checkpoints(folder, tmp_path):
    """The same walk: cos(θ_t, θ_t/2) does not rise. By numpy from the weights."""
    ng.trace(folder, tmp_path / "t5", include="encoder,decoder", lags=[1, 2, 3, 4, 5, 6])
    found = judge(CLAIMS["direction-converges"], Evidence(t5=traced_t5(tmp_path / "t5", tmp_path / "unused")))
    weights = dict(zip(STEPS, stacked("both"), strict=True))
    cosines = [
        weights[step]
        @ weights[step // 2]
        / np.linalg.norm(weights[step])
        / np.linalg.norm(weights[step // 2])
        for step in STEPS
        if step // 2 in weights and step % 2000 == 0
    ]
    assert found.measured["cosine of θ_t and θ_t/2: last"] == pytest.approx(cosines[-1], abs=1e-9)
    assert found.verdict == "does not hold"
    assert "turns on with every doubling" in found.reason


def test_other_claims_about_t5_use_the_traced_series(series):
    found = judge(CLAIMS["dynamics"], Evidence(t5=series))
    assert found.data == f"the paper's text; T5 {series.source}"
    assert found.measured["T5: norm at the end"] == pytest.approx(np.linalg.norm(stacked("both")[-1]))
    layers = series.encoder_matrix()
    assert layers.layers == [0, 1, 2, 3]
    squares = (layers.values**2).sum(axis=1)
    np.testing.assert_allclose(squares, (stacked("encoder") ** 2).sum(axis=1), rtol=1e-12)
    published = PublishedT5().encoder_matrix()
    assert published.values.shape == (104, 12)
    assert published.values[0] == pytest.approx(87.85, abs=0.1)


def test_a_claim_of_another_figure_rests_on_what_it_did(series):
    assert judge(CLAIMS["encoder-degree"], Evidence(t5=series)).data.startswith("the paper's text")


def test_the_published_series_is_the_default():
    assert isinstance(Evidence().t5, PublishedT5)


def test_figures_lay_the_traced_series_over_the_published_one(series):
    drawn = figures(Evidence(t5=series), ["fig1", "fig5"])
    plain = figures(Evidence(), ["fig1", "fig5"])
    for name in ("fig1", "fig5"):
        lines = [sum(len(axes.lines) for axes in one[name].axes) for one in (drawn, plain)]
        assert lines[0] > lines[1]


def test_the_command_from_a_web_server(folder, tmp_path, capsys):
    """As docs/t5_checkpoints.md has it: every claim of Figures 1 and 5, and both figures. No model is trained."""
    page = (Path(__file__).parents[2] / "docs" / "t5_checkpoints.md").read_text(encoding="utf-8")
    only = page.partition("normgrowth reproduce --only ")[2].partition(" ")[0]
    assert set(only.split(",")) == {*T5_CLAIMS, "fig1", "fig5"}
    with RangeServer(folder) as server:
        options = ["--only", only, "-o", str(tmp_path / "out"), "--json"]
        assert main(["reproduce", "--t5", server.url, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stages"] == []
    assert {claim["id"] for claim in found["claims"]} == set(T5_CLAIMS)
    assert {claim["data"] for claim in found["claims"]} == {f"traced here: {server.url}"}
    assert all((tmp_path / "out" / "figures" / f"{name}.svg").is_file() for name in ("fig1", "fig5"))
    kept = tmp_path / "out" / "stages" / "t5"
    assert main(["reproduce", "--t5", str(kept), *options]) == 0  # its trace will do
    again = json.loads(capsys.readouterr().out)
    assert [claim["measured"] for claim in again["claims"]] == [
        claim["measured"] for claim in found["claims"]
    ]


def test_the_same_verdicts_from_a_bucket(folder, series, tmp_path, monkeypatch):
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="t5-data")
        for path in folder.iterdir():
            client.upload_file(str(path), "t5-data", f"base/{path.name}")
        found = ng.reproduce(tmp_path / "out", only=T5_CLAIMS, t5="s3://t5-data/base")
    finally:
        server.stop()
    for claim in found.claims:
        assert claim.data == "traced here: s3://t5-data/base"
        assert claim.measured == judge(CLAIMS[claim.id], Evidence(t5=series)).measured
    said = json.loads((tmp_path / "out" / "claims.json").read_text(encoding="utf-8"))
    assert {tuple(claim["options"]) for claim in said["claims"]} == {("--t5", "s3://t5-data/base")}


def test_what_is_no_series_of_t5(tmp_path, series):
    write_t5_series(tmp_path / "short", STEPS[:3])
    with pytest.raises(InputError, match="has 3 checkpoints; at least 5"):
        traced_t5(tmp_path / "short", tmp_path / "a")
    for step in STEPS[:6]:
        write_bundle(
            tmp_path / "one" / f"model.ckpt-{step}", {"encoder/block_000/q": np.ones((4, 4), "f4") * step}
        )
    with pytest.raises(InputError, match="decoder"):
        TracedT5(ng.trace(tmp_path / "one"))
