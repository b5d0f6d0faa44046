"""The stage `pretrained`: the text of Figure 2, both stacks of T5, and the form of the authors' script."""

import shlex
import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from normgrowth.cli.main import parser_of
from normgrowth.engine import Threads
from normgrowth.errors import InputError
from normgrowth.network.saturation.result import Saturation
from normgrowth.paper import run_stages as paper
from normgrowth.paper.claim import check, judge
from normgrowth.paper.claims import CLAIMS
from normgrowth.paper.discrepancies.departures import DEPARTURES
from normgrowth.paper.evidence import Evidence
from normgrowth.paper.published.figure2 import figure2
from normgrowth.paper.run_stages import settings_of
from normgrowth.paper.stages.figure2_forms import FORMS, Forms, figure2_forms
from normgrowth.paper.stages.pretrained_models import PRETRAINED, Pretrained
from normgrowth.paper.stages.stage import StageContext
from normgrowth.records import Block, Records
from normgrowth.report.figures.saturation import levels as levels_figure
from normgrowth.reproduce import reproduce
from normgrowth.results import load
from normgrowth.saturation import saturation

pytestmark = pytest.mark.usefixtures("one_thread")
SENTENCES = ["the jury said no evidence was found", "it praised the city of Atlanta", "merger proposed"]


@pytest.fixture
def brown(tmp_path):
    path = tmp_path / "brown.txt"
    path.write_text("\n".join(SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def t5(tmp_path):
    """The folder of a small T5 with random weights, which its name does not tell."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    transformers.T5Model(config).save_pretrained(tmp_path / "t5")
    return str(tmp_path / "t5")


@pytest.fixture
def run(tmp_path, t5, monkeypatch):
    settings = Pretrained(models=(t5,), sentences=2, as_published=True)
    stage = replace(PRETRAINED, settings={"demo": settings, "paper": settings})
    monkeypatch.setattr(paper, "STAGES", {"pretrained": stage})

    def measured(**options):
        with closing(Threads(1)) as engine:
            found = reproduce(
                tmp_path / "out", only=["saturation-pretrained", "fig2"], engine=engine, **options
            )
        return found, load(tmp_path / "out" / "stages" / "pretrained")

    return measured


def test_both_stacks_and_the_authors_form_on_a_given_text(tmp_path, run, t5, brown):
    found, measured = run(text=brown)
    assert [*measured.models] == [t5, f"{t5}, decoder", f"{t5}, as published"]
    forms = {"": {}, ", decoder": {"stack": "decoder"}, ", as published": {"as_published": True}}
    for ending, form in forms.items():
        own = saturation(t5, SENTENCES, sentences=2, random_init=1, run=f"{t5}{ending}", **form)
        kept = measured.records.where(run=f"{t5}{ending}")
        for level in ("layer", "model"):
            expected = (
                own.records.where(level=level, quantity="saturation", scale=1000).table["value"].to_numpy()
            )
            got = kept.where(level=level, quantity="saturation", scale=1000).table["value"].to_numpy()
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert len({found_level(measured, run) for run in measured.models}) == 3  # stacks and forms differ
    assert "brown.txt" in found.claims[0].data
    assert (tmp_path / "out" / "figures" / "fig2.svg").is_file()
    assert not (tmp_path / "out" / "figures" / "fig2-as-published.svg").is_file()  # it was not asked for


def found_level(measured, run):
    rows = measured.records.where(run=run, level="model", quantity="saturation", scale=1000)
    return rows.table["value"][0].as_py()


def test_another_text_is_measured_again(run, brown):
    assert run(text=brown)[0].stages[0].status == "ran"
    assert run(text=brown)[0].stages[0].status == "kept"
    brown.write_text("\n".join(reversed(SENTENCES)), encoding="utf-8")
    assert run(text=brown)[0].stages[0].status == "ran"
    assert run()[0].stages[0].status == "ran"  # the documentation


def test_the_brown_corpus_of_the_data_folder_is_the_default(tmp_path, run, brown):
    (tmp_path / "penn").mkdir()
    for scale in ("demo", "paper"):
        found, measured = run(data=tmp_path, scale=scale, overwrite=True)
        assert {one.text.source.partition(",")[0] for one in measured.models.values()} == {str(brown)}
        assert "brown.txt" in found.claims[0].data
    other = tmp_path / "other.txt"
    other.write_text("\n".join(SENTENCES[::-1]), encoding="utf-8")
    assert "other.txt" in run(data=tmp_path, text=other, scale="paper", overwrite=True)[0].claims[0].data


def test_a_text_that_is_not_there_is_refused_at_once(tmp_path, run):
    with pytest.raises(InputError, match=r"none\.txt"):
        run(text=tmp_path / "none.txt")
    assert not (tmp_path / "out").exists()


def test_the_papers_scale_measures_in_both_forms():
    settings = settings_of("paper", None)["pretrained"]
    assert isinstance(settings, Pretrained)
    assert settings.as_published
    assert {"bert-base-cased", "roberta-base", "t5-base", "xlnet-base-cased", "t5-small"} < {*settings.models}
    assert settings.sentences == 100


def levels(run, trained, random):
    values = {"saturation": np.array([[trained]]), "saturation_random": np.array([[random]])}
    return Records.from_blocks(
        run, [Block("model", ["model"], [None], [None], [0], values, constants={"scale": 1000.0})]
    )


def test_a_model_counts_once_and_all_its_forms_are_shown():
    """T5 is judged by its encoder, as §A says; its decoder and the authors' form are numbers beside it."""
    known = {"minilm": (0.2, 0.1), "t5-base": (0.6, 0.4), "t5-base, decoder": (0.3, 0.5)}
    known |= {"t5-base, as published": (0.56, 0.40)}
    records = Records.joined([levels(run, *pair) for run, pair in known.items()])
    found = judge(CLAIMS["saturation-pretrained"], Evidence({"pretrained": Saturation(records=records)}))
    assert found.verdict == "holds"
    assert found.measured["models of the paper that are here"] == 1
    assert found.measured["another model, trained"] == pytest.approx(0.2)
    differences = {name.removeprefix("here, over random: "): value for name, value in found.measured.items()}
    assert [differences[run] for run in [*known][1:]] == pytest.approx([0.2, -0.2, 0.16])


@pytest.fixture
def both(tmp_path, t5, monkeypatch):
    """A stage with a model that cannot be loaded, as one of the hub without internet access, and one that can."""
    (tmp_path / "absent").mkdir()
    settings = Pretrained(models=(str(tmp_path / "absent"), t5), sentences=2)
    stage = replace(PRETRAINED, settings={"demo": settings, "paper": settings})
    monkeypatch.setattr(paper, "STAGES", {"pretrained": stage})

    def reproduced(**options):
        with closing(Threads(1)) as engine:
            return reproduce(
                tmp_path / "out", only=["saturation-pretrained", "fig2"], engine=engine, **options
            )

    return reproduced


def test_a_model_that_cannot_be_loaded_leaves_out_itself_alone(tmp_path, both, t5):
    found = both()
    (stage,) = found.stages
    assert (stage.status, stage.failed) == ("incomplete", False)
    assert stage.reason.startswith(str(tmp_path / "absent"))
    assert found.incomplete == (stage,)
    assert t5 in found.claims[0].data
    assert (tmp_path / "out" / "figures" / "fig2.svg").is_file()
    assert "Incomplete stages" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert both().stages[0].status == "incomplete"  # the next call tries it again
    shutil.copytree(t5, tmp_path / "absent", dirs_exist_ok=True)
    again = both()
    assert again.stages[0].status == "ran"
    assert both().stages[0].status == "kept"


def test_a_stage_of_which_nothing_is_left_fails(tmp_path, both, t5):
    shutil.rmtree(t5)
    found = both()
    assert found.stages[0].status == "failed"
    assert found.claims[0].verdict == "holds"  # by the published means
    assert "published means" in found.claims[0].reason


def test_local_folders_are_measured_as_the_models_of_their_names(tmp_path, both, t5, brown, monkeypatch):
    folders = [tmp_path / name for name in ("t5-small", "t5-base")]
    for folder in folders:
        shutil.copytree(t5, folder)
    monkeypatch.setattr("normgrowth.paper.stages.pretrained_models.SENTENCES", 2)
    with closing(Threads(1)) as engine:
        only = ["saturation-small", "saturation-pretrained", "fig2-as-published"]
        options = {"only": only, "models": folders, "text": brown, "engine": engine}
        found = reproduce(tmp_path / "given", **options)
        small, judged = found["saturation-small"], found["saturation-pretrained"]
        assert small.measured["small minus base: t5-small"] == 0  # the same weights
        assert small.measured["pairs"] == 3  # encoder, decoder, as published
        assert judged.measured["models of the paper that are here"] == 1
        assert (tmp_path / "given" / "figures" / "fig2-as-published.svg").is_file()
        command = shlex.split(found.command(small))
        page = (tmp_path / "given" / "report.html").read_text(encoding="utf-8")
        assert found.command(small) in page
        assert reproduce(tmp_path / "given", **options).stages[0].status == "kept"
        (folders[0] / "notes.txt").write_text("another version of the files", encoding="utf-8")
        assert reproduce(tmp_path / "given", **options).stages[0].status == "ran"
    arguments = parser_of("reproduce").parse_args(command[2:])
    assert arguments.models == [str(folder) for folder in folders]
    assert (arguments.text, arguments.only) == (str(brown), ("saturation-small",))


def test_the_published_line_of_t5_is_called_the_decoders():
    names = [text.get_text() for text in levels_figure(figure2(), published=figure2()).legends[0].get_texts()]
    assert "t5-base, decoder, published" in names
    assert not {name for name in names if name.startswith("t5-base") and "decoder" not in name}


def test_the_forms_of_figure_2(tmp_path):
    """A T5 of one layer's width 64: the stacks, inputs and modes differ; the memory of XLNet lacks its last layer."""
    settings = Forms(width=64, vocabulary=100, seeds=(0, 1), sentences=1)
    with closing(Threads(1)) as engine:
        stored = figure2_forms(StageContext(tmp_path, engine), settings)
    found = Evidence({"figure2_forms": stored}).figure2_forms
    assert [*found] == [*FORMS, "xlnet, states", "xlnet, memory"]
    assert [len(levels) for levels in found.values()] == [12] * 6 + [11]
    assert len({round(levels.mean(), 6) for levels in found.values()}) == 7
    np.testing.assert_allclose(found["xlnet, memory"], found["xlnet, states"][:11], atol=1e-6)
    assert check(DEPARTURES["xlnet-line"], Evidence({"figure2_forms": stored})).differs
    runs = stored.records.distinct("run")
    one, other = (
        stored.records.where(run=f"encoder, seed {seed}").matrix("saturation", scale=1000).values[-1, 1:]
        for seed in (0, 1)
    )
    assert len(runs) == 12
    np.testing.assert_allclose(found["encoder"], (one + other) / 2)
