"""The stage `language_models` on four tiny models: what is kept of them, and what claims make of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from normgrowth.behavior import behavior
from normgrowth.engine import Threads
from normgrowth.lab.build import corpus_of, new_model
from normgrowth.lab.settings import preset
from normgrowth.network.models.encoder_folder import load_weights
from normgrowth.paper.claim import check, judge
from normgrowth.paper.claims import CLAIMS, saturated_models
from normgrowth.paper.discrepancies.caveats import CAVEATS
from normgrowth.paper.discrepancies.departures import DEPARTURES
from normgrowth.paper.evidence import Evidence, TrainedModels
from normgrowth.paper.paper_figures import figures
from normgrowth.paper.stages.language_models import LANGUAGE_MODELS
from normgrowth.paper.stages.model_training import equally_spaced, sentence_losses, train_models
from normgrowth.paper.stages.stage import StageContext
from normgrowth.report.page.content import PageEntry, content_of
from normgrowth.report.page.sections.trace import sections as trace_sections
from normgrowth.results import load
from normgrowth.trace.result import Trace
from normgrowth.train import train

TINY = preset(
    "tiny",
    "pydoc",
    min_count=20,
    steps=24,
    evaluate="powers",
    dev_sentences=20,
    saturation_sentences=4,
    track="2",
)
MODELS = {
    "true": TINY,
    "sgd": replace(TINY, optimizer="sgd", lr=0.1),
    "leaking": replace(TINY, leaking=True),
    "post": replace(TINY, kind="post_norm", warmup=4),
    "falling": replace(TINY, schedule="inverse_sqrt", hold=2),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("language_models")


@pytest.fixture(scope="module")
def evidence(folder):
    engine = Threads(1)
    said = []
    context = StageContext(folder, engine, progress=lambda *told: said.append(told))
    models = train_models(context, MODELS)
    engine.close()
    assert said == [(i + 1, len(MODELS), name) for i, name in enumerate(MODELS)]
    return Evidence({"language_models": models})


def test_each_model_has_a_run_a_trace_heads_and_predictions(evidence):
    assert [one.name for one in evidence.language_models] == list(MODELS)
    for one in evidence.language_models:
        parts = (one.run, one.trace, one.heads, one.behavior)
        assert [type(part).kind for part in parts] == ["run", "trace", "heads", "behavior"]
        assert {part.records.single_run() for part in parts} == {one.name}
        assert one.run.settings == MODELS[one.name]
        assert one.epochs == pytest.approx(24 * TINY.batch / len(corpus_of(TINY, None).train))
        assert one.run.corpus.frequency_loss == one.frequency_loss
    (leaking,) = evidence.language_models.where(leaking=True)
    assert (leaking.name, leaking.kind, leaking.optimizer) == ("leaking", "paper_pre_norm", "adamw")
    assert (leaking.schedule, leaking.corpus, leaking.seed) == ("constant", "pydoc", 0)
    assert (leaking.layers, leaking.run.settings.width) == (2, 32)
    first = model_of(evidence, "true")
    steps, norms = first.measured.series("norm")
    assert steps[-1] == 24
    assert (norms > 0).all()
    assert (
        len(first.heads.records.where(level="head", quantity="attended_window")) == 4
    )  # at the last step only


def test_they_are_stored_in_their_order_and_loaded_alone(evidence, tmp_path):
    models = evidence.language_models
    models.write(tmp_path)
    again = TrainedModels.read(tmp_path)
    assert [one.name for one in again] == list(MODELS)
    for one, found in zip(models, again, strict=True):
        for part in ("run", "trace", "heads", "behavior"):
            assert getattr(found, part).to_json() == getattr(one, part).to_json()
            alone = load(tmp_path / "models" / one.name / ("" if part == "run" else part))
            assert type(alone) is type(getattr(one, part))
    claims = ("lm-growth", "heads-bimodal", "conversion")
    stored = Evidence({"language_models": again})
    assert [judge(CLAIMS[name], stored) for name in claims] == [
        judge(CLAIMS[name], evidence) for name in claims
    ]


def model_of(evidence, name):
    return next(one for one in evidence.language_models if one.name == name)


@pytest.mark.parametrize(
    "name",
    [
        *("uniform-growth", "scalar-growth", "lm-growth", "saturation-lm", "saturation-growth"),
        *("heads-bimodal", "heads-local", "conversion", "max-margin", "schedule-decides"),
    ],
)
def test_claims_are_judged_by_it(evidence, name):
    found = judge(CLAIMS[name], evidence)
    assert found.verdict != "not measured here", found.reason


def test_scalars_are_those_of_the_checkpoints(evidence, folder):
    """The first and the last checkpoint of one model, read whole."""
    (model,) = [one for one in evidence.language_models if one.name == "true"]
    first, last = (
        load_file(path / "model.safetensors")
        for path in (
            min((folder / "true" / "checkpoints").iterdir()),
            max((folder / "true" / "checkpoints").iterdir()),
        )
    )
    names = [name for name in first if ".blocks." in name]
    a, b = (np.concatenate([arrays[name].ravel() for name in names]) for arrays in (first, last))
    assert model.against_first("share_grown") == pytest.approx((np.abs(b) > np.abs(a)).mean(), abs=1e-12)
    assert model.against_first("share_sign_changed") == pytest.approx((a * b < 0).mean(), abs=1e-12)


def test_normalized_margins_are_those_of_the_logits(evidence, folder):
    """By sorting the logits of single sentences, and the norm of all stored tensors."""
    (model,) = [one for one in evidence.language_models if one.name == "post"]
    corpus = corpus_of(MODELS["post"], None)
    weights = max((folder / "post" / "checkpoints").iterdir())
    network = new_model(MODELS["post"], corpus)
    load_weights(weights, network)
    found, whole, text = [], [], []
    for row in corpus.train[:200]:
        ids = torch.from_numpy(np.array([row]))
        with torch.no_grad():
            logits = network.eval()(ids[:, :-1])[0].double().numpy()
        own = [
            place[token] - np.sort(np.delete(place, token))[-1]
            for place, token in zip(logits, row[1:], strict=True)
        ]
        found += own
        if row[0] == row[-1]:  # not a part of a long sentence
            whole += own
            text.append(" ".join(corpus.vocabulary.words[token] for token in row[1:-1]))
    arrays = load_file(weights / "model.safetensors").values()
    square = sum((array.astype(np.float64) ** 2).sum() for array in arrays)
    assert model.last("logit_degree") == 2
    assert model.last("normalized_margin") == pytest.approx(np.median(found) / square, rel=1e-4)
    assert model.last("normalized_margin_least") == pytest.approx(min(found) / square, rel=1e-4)
    assert model.last("share_separated") == pytest.approx((np.array(found) > 0).mean(), abs=1e-3)
    options = {"sentences": 200, "c": (), "hard_attention": False, "random_init": 0, "bootstrap": 0}
    (margins,) = behavior(weights, text, **options).margins  # whole sentences by the public function
    assert margins.normalized_median == pytest.approx(np.median(whole) / square, rel=1e-4)
    assert margins.normalized_least == pytest.approx(min(whole) / square, rel=1e-4)


def test_no_maximal_margin_without_a_model_that_fits_its_tokens(evidence):
    found = judge(CLAIMS["max-margin"], evidence)
    assert found.verdict == "not shown"
    assert found.measured["that rank all training tokens first"] == 0


def test_schedules_are_compared_within_one_network(evidence):
    """The slope over the later half, by hand; the other models have no partner."""
    slopes = []
    for name in ("true", "falling"):
        steps, norms = model_of(evidence, name).measured.series("norm")
        x, y = np.log(steps[steps >= 12]), np.log(norms[steps >= 12])
        slopes.append(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    found = judge(CLAIMS["schedule-decides"], evidence).measured
    assert found["pairs"] == 1
    assert found["exponent: true, constant"] == pytest.approx(slopes[0], rel=1e-6)
    assert found["smallest difference in a pair"] == pytest.approx(abs(slopes[0] - slopes[1]), rel=1e-6)


@pytest.mark.parametrize("level", [0.98, 0.0])
def test_conversion_counts_models_by_their_intervals(evidence, level, monkeypatch):
    """Only saturated models that learned count; one is converted if it agrees and stays as accurate."""
    monkeypatch.setattr(saturated_models, "SATURATED", level)
    true = [one for one in evidence.language_models if not one.leaking]
    learned = [one for one in true if one.last("dev_loss") < one.frequency_loss]
    converted = 0
    for one in learned:
        rows = one.behavior.records.where(level="model", scale=None).table.to_pylist()
        at = {(row["name"], row["quantity"]): row["value"] for row in rows}
        agrees = at["saturated", "agreement"] >= 0.9
        as_good = at["saturated", "accuracy_high"] >= at["soft", "accuracy_low"]
        converted += agrees and as_good and one.last("saturation") >= level
    found = judge(CLAIMS["conversion"], evidence).measured
    assert (found["models that learned"], found["of these converted"]) == (len(learned), converted)
    assert found["of these at a saturation of 0.98 or more"] == sum(
        one.last("saturation") >= level for one in learned
    )


def test_distances_of_heads_that_attend_to_one_position(evidence):
    ratios = []
    for name in ("true", "sgd", "post", "falling"):
        rows = model_of(evidence, name).heads.records.where(level="head", scale=None).table.to_pylist()
        own = [row for row in rows if row["step"] == 24]
        at = {(row["name"], row["quantity"]): row["value"] for row in own}
        ratios += [
            at[head, "attended_distance"] / at[head, "visible_distance"]
            for head in dict.fromkeys(row["name"] for row in own)
            if at[head, "attended_spread"] <= 0.1
        ]
    found = judge(CLAIMS["heads-local"], evidence).measured
    assert found["heads at one position"] == len(ratios)
    assert found["median ratio"] == pytest.approx(np.median(ratios))
    assert found["share that focuses locally"] == pytest.approx(np.mean([one <= 0.5 for one in ratios]))


def test_growth_is_what_the_records_say(evidence):
    found = judge(CLAIMS["lm-growth"], evidence).measured
    factors = []
    for name in ("true", "sgd", "post", "falling"):
        _, norms = model_of(evidence, name).measured.series("norm")
        factors.append(norms[-1] / norms[0])
    assert found["models"] == 4
    assert found["smallest factor"] == pytest.approx(min(factors))
    assert found["largest factor"] == pytest.approx(max(factors))


@pytest.mark.parametrize("name", ["mask", "padding", "perplexity", "post-norm", "sgd"])
def test_departures_are_measured(evidence, name):
    found = check({**DEPARTURES, **CAVEATS}[name], evidence)
    assert found.differs is not None, found.reason


def test_perplexity_as_the_authors_have_it(evidence, folder):
    """Weighted by tokens the losses of sentences are the dev loss; theirs takes 2 to each, and a plain mean."""
    corpus = corpus_of(TINY, None)
    model = new_model(TINY, corpus)
    load_weights(folder / "true" / "checkpoints" / "step-00000024", model)
    rows = corpus.valid[: TINY.dev_sentences]
    nats, tokens = sentence_losses(model, rows, batch=7), np.array([len(row) - 1 for row in rows])
    found = check(DEPARTURES["perplexity"], evidence).measured
    assert np.exp((nats * tokens).sum() / tokens.sum()) == pytest.approx(
        found["exp of the mean loss per token"], rel=1e-5
    )
    assert (2**nats).mean() == pytest.approx(found["mean over sentences of 2^loss"], rel=1e-5)
    assert check(DEPARTURES["perplexity"], evidence).differs


def test_post_norm_is_measured_against_word_frequencies(evidence):
    corpus = corpus_of(TINY, None)
    frequencies = corpus.frequency_loss("valid", TINY.dev_sentences)
    last = model_of(evidence, "post").measured.series("dev_loss")[1][-1]
    found = check(CAVEATS["post-norm"], evidence).measured
    assert found["post-norm here: below word frequencies by"] == pytest.approx(frequencies - last)


def test_figures_are_drawn(evidence):
    assert figures(evidence).keys() == {"fig1", "fig3", "fig5"}


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([0, 100, 133, 200, 266, 300], [0, 100, 200, 300]),
        ([0, 1, 2, 4, 8, 16, 24], [0, 8, 16, 24]),
        ([0, 1, 2, 4, 8, 10, 16, 20, 30], [0, 10, 20, 30]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 5, 7], [0, 5, 7]),
        ([0, 1, 2, 4, 8, 16, 21], [0, 1, 2, 4, 8, 16, 21]),
    ],
)
def test_equally_spaced_checkpoints(steps, kept):
    paths = [Path(f"step-{step:08}") for step in steps]
    assert equally_spaced(paths) == [Path(f"step-{step:08}") for step in kept]


def test_directions_are_measured_between_equally_spaced_checkpoints(evidence, folder):
    """Cosine and step size of the matrices from the stored weights; heads of the first and the last checkpoint."""
    (model,) = [one for one in evidence.language_models if one.name == "true"]

    def matrices(step):
        arrays = load_file(folder / "true" / "checkpoints" / f"step-{step:08}" / "model.safetensors")
        found = [
            array.astype(np.float64)
            for name, array in arrays.items()
            if ".blocks." in name and array.ndim > 1
        ]
        return np.concatenate([array.ravel() for array in found])

    rows = model.trace.records.where(level="part", name="matrices")
    steps, cosines = rows.series("cosine", level="part")
    assert steps.tolist() == [8, 16, 24]
    for step, cosine, size in zip(steps, cosines, rows.series("step_size", level="part")[1], strict=True):
        a, b = matrices(step - 8), matrices(step)
        assert cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        assert size == pytest.approx(np.linalg.norm(b - a))
    assert model.heads.records.distinct("step") == [0, 24]


def test_figure_1_shows_matrices_their_law_their_layers_and_saturation(evidence):
    figure = figures(evidence, ["fig1"])["fig1"]
    rows = np.reshape(figure.axes[:12], (3, 4))
    models = [one for one in evidence.language_models if one.name in ("true", "falling")]
    assert len({panel.get_title(loc="left") for panel in rows[:, 0]}) == 3
    for (norms, layers, cosines, levels), model in zip(rows[1:], models, strict=True):
        lines = {line.get_label(): line for line in norms.lines}
        steps, own = model.trace.records.where(name="matrices").series("norm", level="part")
        np.testing.assert_array_equal(lines["matrices"].get_xdata(), steps)
        np.testing.assert_array_equal(lines["matrices"].get_ydata(), own)
        assert any("r²" in str(label) for label in lines)
        by_layer = model.trace.matrix("norm")
        for line, values in zip(layers.lines, by_layer.values.T, strict=True):
            np.testing.assert_array_equal(line.get_ydata(), values)
        assert cosines.lines[-1].get_xdata().tolist() == [8, 16, 24]
        mean = {line.get_label(): line.get_ydata()[-1] for line in levels.lines}
        assert mean["mean"] == model.last("saturation")
        assert mean["to other tokens"] == model.last("saturation_others")
    assert not rows[0][3].axison  # no levels of T5


def test_normalized_margins_are_a_section_of_the_page(evidence):
    models = list(evidence.language_models)
    traces = [Trace(records=one.measured, source=one.name, run=one.name, tracked=True) for one in models]
    shown = content_of(
        [PageEntry(one.name, trace) for one, trace in zip(models, traces, strict=True)], fitted=False
    )
    (section,) = [one for one in trace_sections(shown) if one.id == "margins"]
    chart, table = section.items
    assert {curve.label for curve in chart.curves} == set(MODELS)
    columns = {column.title: column for column in table.columns}
    assert columns["median at last"].values == [one.last("normalized_margin") for one in models]
    assert columns["median at half"].values == [one.over_later_half("normalized_margin")[0] for one in models]
    assert columns["least at last"].values == [one.last("normalized_margin_least") for one in models]
    rising = sum(last > first for first, last in (one.over_later_half("normalized_margin") for one in models))
    assert f"in {rising} of {len(models)} models" in chart.alt


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")  # as the stage trains it: other sums of threads end at another norm
def test_post_norm_of_the_demo_learns_and_its_matrices_double(tmp_path):
    settings = LANGUAGE_MODELS.settings["demo"].models()["pydoc-post_norm-adamw"]
    corpus = corpus_of(settings, None)
    found = train(replace(settings, saturation_sentences=0), tmp_path / "run", corpus=corpus).records
    assert found.series("dev_loss")[1][-1] < corpus.frequency_loss("valid", settings.dev_sentences) - 0.5
    norms = found.where(name="matrices").series("norm", level="part")[1]
    assert norms[-1] > 2 * norms[0]
