"""One default for what a norm counts, the same numbers from every command, and every header says which."""

import json
from dataclasses import replace
from functools import partial

import pytest
import tiny_settings
import torch
from synthetic_series import save_file, tiny_state, walk, write_series
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import normgrowth
from normgrowth.checkpoints.checkpoint import Tensor
from normgrowth.checkpoints.parameters.selection import CountedParameters, NothingCounts, Selection
from normgrowth.cli.main import main
from normgrowth.errors import InputError, SchemaError, SeriesWarning
from normgrowth.records import Records
from normgrowth.report.figures.trace import figure_norm_direction
from normgrowth.report.renderers import draw
from normgrowth.stored_result import StoredResult
from normgrowth.trace.result import Trace
from normgrowth.train import train

COUNTED = CountedParameters(
    tensors=10, of_tensors=12, values=1104, of_values=1280, dtypes={"F32": 10}
)  # of checkpoints.tiny_state
HEADER = "blocks (10 of 12 tensors, 1,104 of 1,280 values)"


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> Trace:
    folder = tmp_path_factory.mktemp("series")
    return normgrowth.trace(write_series(folder / "run", walk(3)), folder / "traced")


def norms(records: Records) -> dict[int, float]:
    return dict(zip(*(column.tolist() for column in records.series("norm")), strict=True))


def test_trace_and_tracker_give_the_same_norm_of_the_model(tmp_path):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def save(step):
        state = {n: p.clone() for n, p in model.state_dict().items() if n != "lm_head.weight"}
        save_file(state, tmp_path / f"step_{step}.safetensors")

    save(0)
    with normgrowth.NormTracker(model, optimizer, every=1) as tracker:
        for step in range(1, 4):
            optimizer.zero_grad()
            ids = torch.randint(20, (2, 8))
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            save(step)
    traced = normgrowth.trace(tmp_path)
    assert norms(traced.records) == pytest.approx(norms(tracker.trace.records), rel=1e-14)
    tracked = tracker.trace
    assert traced.selection == tracked.selection
    assert traced.counted == tracked.counted


def test_train_and_a_trace_of_its_checkpoints_give_the_same_norm_of_the_model(tmp_path):
    settings = replace(tiny_settings.TINY, evaluate="5", track="5", saturation_sentences=0)
    run = train(settings, tmp_path / "run")
    traced = normgrowth.trace(tmp_path / "run" / "checkpoints")
    trained, records = run.records, traced.records
    both = norms(trained).keys() & norms(records).keys()
    assert len(both) >= 2
    for step in both:  # tensors are added in the order of the file here, of the modules there
        assert norms(trained)[step] == pytest.approx(norms(records)[step], rel=1e-14)
    assert run.counted == traced.counted
    assert run.trace.parameters == traced.parameters != ""


def test_the_records_say_what_counts(traced):
    assert traced.counted == COUNTED
    assert traced.parameters == HEADER
    assert HEADER in traced._repr_html_()
    assert Trace(records=traced.records).parameters == ""
    known = StoredResult(traced.records, {"selection": {"include": "all", "select": None}})
    assert Trace.from_stored(known).parameters == "all"
    with pytest.raises(SchemaError, match="selection"):
        Trace.from_stored(StoredResult(traced.records, {"selection": 3}))


def test_a_head_stored_as_a_copy_of_the_embedding_counts_nowhere(tmp_path):
    states = [{**state, "lm_head.weight": state["transformer.wte.weight"].clone()} for state in walk(2)]
    with pytest.warns(SeriesWarning, match="counted once"):
        found = normgrowth.trace(write_series(tmp_path, states), include="all")
    assert found.counted == CountedParameters(11, 11, 1192, 1192, {"F32": 11})


def test_every_table_says_what_counts(traced, tmp_path, capsys):
    print(traced)
    print(normgrowth.compare(traced, traced))
    assert capsys.readouterr().out.count(HEADER) == 4  # the trace; the comparison and both of its runs
    traced.save(tmp_path / "traced")
    assert main(["fit", str(tmp_path / "traced")]) == 0
    assert main(["watch", str(tmp_path / "traced"), "--once"]) == 0
    assert main(["dynamics", str(tmp_path / "traced"), "--schedule", "1e-3"]) == 0
    assert capsys.readouterr().out.count(HEADER) == 3
    for command in (["fit"], ["dynamics", "--schedule", "1e-3"]):
        assert main([command[0], str(tmp_path / "traced"), *command[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["parameters"] == HEADER
    assert normgrowth.compare(traced, traced).a.parameters == HEADER


def test_figures_and_the_page_say_what_counts(traced, tmp_path):
    figure = figure_norm_direction(traced)
    assert figure is not None
    assert figure.axes[0].get_title(loc="left") == "model (blocks)"
    traced.save(tmp_path / "traced")
    paths = draw(traced, tmp_path / "figures", formats=["svg"])
    assert "blocks (10 of 12 tensors" in paths[0].read_text(encoding="utf-8")
    normgrowth.report([tmp_path / "traced"], tmp_path / "page.html")
    assert HEADER in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_traces_that_count_different_parameters_are_told_apart(traced, tmp_path):
    other = normgrowth.trace(write_series(tmp_path, walk(3)), include="all")
    found = normgrowth.compare(traced, other)
    assert not found.comparable
    assert "different parameters" in str(found)


class Unlisted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


def test_what_has_no_blocks_is_told_how_to_count(tmp_path, capsys):
    model = Unlisted()
    with pytest.raises(NothingCounts) as caught:
        normgrowth.NormTracker(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert caught.value.parameters == 4
    assert list(caught.value.would_count.values()) == [4]
    assert "--include all" in str(caught.value)
    save_file(model.state_dict(), tmp_path / "step_1.safetensors")
    with pytest.raises(NothingCounts, match=r'include="all"'):
        normgrowth.trace(tmp_path)
    assert main(["trace", str(tmp_path)]) == 2
    assert "--include all" in capsys.readouterr().err
    normgrowth.NormTracker(model, torch.optim.SGD(model.parameters(), lr=0.1), include="all").close()


def test_select_and_exclude_that_leave_nothing_say_what_would_count():
    index = {name: Tensor("F32", tuple(tensor.shape)) for name, tensor in tiny_state().items()}
    choose = partial(Selection.choose, label="x", tensors=index)
    with pytest.raises(NothingCounts) as caught:
        choose(Selection(select="nothing"))
    assert caught.value.would_count == {'--include all (in Python include="all")': 12, "no --select": 10}
    with pytest.raises(NothingCounts) as caught:
        choose(Selection(exclude="."))
    assert caught.value.would_count == {'--include all (in Python include="all")': 12, "no --exclude": 10}
    with pytest.raises(InputError, match="no parameters"):
        Selection().choose("x", {"mask": Tensor("BOOL", (4,))})
