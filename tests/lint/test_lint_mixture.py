"""Lint where a folder holds more than one series: the other files are named, with globs, and not judged."""

import re
import shlex
import struct
import warnings
from pathlib import Path

import pytest
import torch
from synthetic_series import moved, save_file, tiny_state

from normgrowth.checkpoints.name_globs import separating_globs
from normgrowth.checkpoints.series import open_source
from normgrowth.cli import main as cli
from normgrowth.errors import InputError
from normgrowth.lint import lint
from normgrowth.trace import trace


def series(seed=0, count=8, **options):
    states = [tiny_state(seed, **options)]
    for i in range(1, count):
        states.append(moved(states[-1], 100 * seed + i, 0.01))
    return states


def put(folder, states, name, first=0, every=10):
    for i, state in enumerate(states):
        path = folder / name.format(first + every * i)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(state, path)
    return folder


def adapters(count=8):
    shapes = {"lora_A": (2, 8), "lora_B": (24, 2)}
    start = {f"base.h.{i}.attn.{k}.weight": torch.randn(*s) for i in range(2) for k, s in shapes.items()}
    return [{name: x + 0.01 * i * torch.randn_like(x) for name, x in start.items()} for i in range(count)]


def activations(count=8):
    return [{f"layer_{i}": torch.randn(16, 8) for i in range(3)} for _ in range(count)]


def faults(found):
    return [(f.step, f.kind) for f in found if f.severity == "fault"]


def pasted(why):
    """The sources of the commands that a finding gives."""
    return [shlex.split(command)[2:] for command in re.findall(r"normgrowth lint [^;]+", why)]


@pytest.mark.parametrize(
    "other",
    [
        lambda: adapters(),
        lambda: series(1, layers=1),  # a smaller model with the same names
        lambda: series(1, width=16),  # a wider one
        lambda: series(1),  # the same model, another run
    ],
    ids=["adapters", "smaller", "wider", "run"],
)
def test_two_series_are_one_fault_with_commands_that_separate_them(tmp_path, other):
    folder = put(tmp_path / "my runs", series(), "main_step_{}.safetensors")
    put(folder, other(), "other_step_{}.safetensors", first=3)
    (fault,) = [f for f in lint(folder) if f.severity == "fault"]
    assert (fault.kind, fault.name) == ("mixed", "")
    assert "two series?" in fault.why
    sources = pasted(fault.why)
    assert len(sources) == 2
    for source in sources:
        report = lint(source)
        assert len(report.steps) == 8
        assert not report


@pytest.mark.parametrize("name", ["acts_step_{}.safetensors", "step_{}.safetensors"])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_data_files_are_a_remark_and_not_judged(tmp_path, name, count):
    folder = put(tmp_path, series(), "step_{}.safetensors")
    put(folder, activations(count), name, first=3)
    (finding,) = report = lint(folder)
    assert (finding.step, finding.kind, finding.severity) == (3, "data", "remark")
    assert "layer_0" in finding.why
    assert report.steps == tuple(range(0, 80, 10))


def foreign_lists(count=20):
    return [[torch.randn(2, 3), i] for i in range(count)]


def changing_data(count=20):
    return [{f"sample_{i}_{j}": torch.randn(i + 1, 5) for j in range(3)} for i in range(count)]


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")
@pytest.mark.parametrize("name", ["acts_{}.pt", "acts_step_{}.pt", "probe_{}/acts.pt"])
@pytest.mark.parametrize("data", [foreign_lists, changing_data])
def test_data_files_are_one_remark_per_name_pattern_with_the_command_that_leaves_them_out(
    tmp_path, data, name
):
    """20 files, each with other tensors or with none, were 20 findings."""
    folder = put(tmp_path, series(), "step_{}.safetensors")
    for i, content in enumerate(data()):
        path = folder / name.format(100 + i)
        path.parent.mkdir(exist_ok=True)
        torch.save(content, path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (finding,) = lint(folder)
    assert (finding.kind, finding.severity) == ("data", "remark")
    assert finding.label == str(folder / name.format(100))
    assert f"20 files {folder / name.format('*')}" in finding.why
    assert len(caught) <= 2
    ((source,),) = pasted(finding.why)
    report = lint(source)
    assert len(report.steps) == 8
    assert not report
    if "step_" in name or data is changing_data:  # the others are skipped when the folder is searched
        with pytest.raises(InputError) as error:
            trace(folder)
        assert str(error.value).endswith(f"; without these files: {shlex.quote(source)}")


def test_unreadable_files_that_are_named_apart_are_one_fault(tmp_path):
    folder = put(tmp_path, series(), "step_{}.pt.safetensors")
    for i in range(100, 120):
        (folder / f"eval_step_{i}.safetensors").write_bytes(bytes(20))
    (fault,) = lint(folder)
    assert (fault.step, fault.kind, fault.severity) == (100, "partial", "fault")
    assert "20 files" in fault.why
    ((source,),) = pasted(fault.why)
    assert not lint(source)


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")
def test_unreadable_checkpoints_of_the_series_are_a_fault_each(tmp_path):
    folder = put(tmp_path, series(), "epoch_{}.safetensors")
    for i in (30, 50):
        (folder / f"epoch_{i}.safetensors").write_bytes(bytes(20))
    found = lint(folder)
    assert [(f.kind, Path(f.label).name) for f in found] == [
        ("partial", "epoch_30.safetensors"),
        ("partial", "epoch_50.safetensors"),
    ]
    assert len([note for note in found.notes if note.startswith("skipped")]) == 2


@pytest.mark.filterwarnings("ignore::normgrowth.errors.SeriesWarning")
def test_models_of_several_sizes_are_one_finding(tmp_path):
    folder = put(tmp_path, series(), "step_{}.safetensors")
    for width in (12, 16, 24, 28):
        save_file(tiny_state(1, width=width), folder / f"width_{width}.safetensors")
    (finding,) = [f for f in lint(folder) if f.severity == "fault"]
    assert finding.kind == "mixed"
    assert "4 checkpoints" in finding.why
    assert pasted(finding.why) == [
        [str(folder / "step_*.safetensors")],
        [str(folder / "width_*.safetensors")],
    ]


def test_many_series_in_one_folder_have_their_sizes_and_the_largest_are_listed(tmp_path):
    put(tmp_path, series(), "step_{}.safetensors")
    for run in range(12):
        put(tmp_path, series(run, 2), f"probe_{run}/layer_step_{{}}.safetensors")
    with pytest.raises(InputError, match=r"several series \(8 and 2 and 2 and 2 files\)") as caught:
        lint(tmp_path)
    listed, _, more = str(caught.value).split("Select one: ")[1].partition(" or others, ")
    assert more == "13 in all"
    globs = shlex.split(listed.replace(" or ", " "))
    assert globs[0] == str(tmp_path / "step_*.safetensors")
    assert len(globs) == 4


@pytest.mark.parametrize("count", [2, 3, 5])
def test_independent_models_are_not_a_series(tmp_path, count):
    """Packages with the models of an ensemble (model_1 to model_4): "Nothing found" before."""
    for i in range(count):
        save_file(tiny_state(i, width=32), tmp_path / f"step_{i + 1}.safetensors")
    (finding,) = [f for f in lint(tmp_path) if not f.name]
    assert (finding.step, finding.kind) == (2, "run")
    assert finding.severity == ("fault" if count > 2 else "remark")


def test_steps_that_two_parts_of_a_subfolder_share_are_an_error_not_a_damaged_file(tmp_path):
    put(tmp_path, series(0, 4), "models/a_step_{}.safetensors")
    put(tmp_path, series(1, 4), "models/b_step_{}.safetensors")
    put(tmp_path, series(2, 1), "other/weights.safetensors")
    with pytest.raises(InputError, match="both have step 0"):
        lint(tmp_path)


def test_a_single_file_is_named_as_it_is():
    """A digit of its folder is not a step."""
    pair = [[("/runs2/onet.pt", 0)], [("/runs2/pnet.pt", 1)]]
    assert separating_globs(pair) == [["/runs2/onet.pt"], ["/runs2/pnet.pt"]]


def test_a_data_file_that_comes_first(tmp_path):
    folder = put(tmp_path, series(), "step_{}.safetensors", first=10)
    save_file({"tokens": torch.arange(40), "labels": torch.arange(40)}, folder / "data_step_1.safetensors")
    (finding,) = report = lint(folder)
    assert (finding.step, finding.kind, finding.severity) == (1, "data", "remark")
    assert len(report.steps) == 8


def test_faults_of_the_main_series_are_still_found(tmp_path):
    states = series(count=10)
    name = "transformer.h.0.mlp.c_fc.weight"
    states[6][name] = states[5][name]
    folder = put(tmp_path, states, "step_{}.safetensors")
    put(folder, adapters(4), "adapter_step_{}.safetensors", first=1)
    put(folder, activations(2), "acts_step_{}.safetensors", first=2)
    found = lint(folder)
    assert [(f.step, f.kind) for f in found] == [(1, "mixed"), (2, "data"), (60, "stale")]


def test_one_model_whose_files_change_their_names_is_one_series(tmp_path):
    states = series(count=10)
    folder = put(tmp_path, states[:5], "warmup_step_{}.safetensors")
    put(folder, states[5:], "main_step_{}.safetensors", first=50)
    assert not lint(folder)


def test_a_stranger_is_a_stranger_whatever_the_names(tmp_path):
    states = series(count=10)
    states[3] = tiny_state(7)
    folder = put(tmp_path, states[:5], "warmup_step_{}.safetensors")
    put(folder, states[5:], "main_step_{}.safetensors", first=50)
    assert faults(lint(folder)) == [(30, "run")]


@pytest.mark.parametrize("names", [("a_step_{}.pt", "b_step_{}.pt"), ("a1/step_{}.pt", "a2/step_{}.pt")])
def test_steps_that_two_series_share_are_an_error_with_globs(tmp_path, names):
    for name, seed in zip(names, (0, 1), strict=True):
        for i, state in enumerate(series(seed, 4)):
            path = tmp_path / name.format(10 * i)
            path.parent.mkdir(exist_ok=True)
            torch.save(state, path)
    with pytest.raises(InputError, match="two series") as caught:
        lint(tmp_path)
    globs = shlex.split(str(caught.value).split("Select one: ")[1].replace(" or ", " "))
    assert [len(open_source(source)) for source in globs] == [4, 4]


def test_globs_match_their_own_files_only():
    plain, averaged = ([(f"r/step_{i}{end}.pt", i) for i in (5, 10)] for end in ("", "_ema"))
    assert separating_globs([plain, averaged]) == [["r/step_*[0-9].pt"], ["r/step_*_ema.pt"]]
    assert separating_globs([plain[:1], plain[1:]]) == [[plain[0][0]], [plain[1][0]]]
    assert separating_globs([plain, [("r/step_7.pt", 7)]]) is None
    odd = [(f"r[1]/a*{i}.pt", i) for i in (1, 2)]
    ((found,),) = separating_globs([odd])
    assert found == "r[[]1]/a[*]*.pt"


def test_a_tensor_in_a_dtype_that_cannot_be_measured_is_a_finding(tmp_path):
    folder = put(tmp_path, series(), "step_{}.safetensors")
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header = data[8 : 8 + size].rstrip().decode()
        end = len(data) - 8 - size
        entry = f',"transformer.h.0.phase":{{"dtype":"C64","shape":[2],"data_offsets":[{end},{end + 16}]}}}}'
        header = (header[:-1] + entry).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :] + bytes(16))
    (finding,) = report = lint(folder)
    assert (finding.step, finding.name, finding.kind) == (0, "transformer.h.0.phase", "dtype")
    assert "C64" in finding.why
    assert len(report.steps) == 8


def test_the_header_says_which_parameters_were_checked(tmp_path, capsys):
    folder = put(tmp_path, series(), "step_{}.safetensors")
    assert lint(folder).checked == "all 12 parameters"
    assert lint(folder, include="blocks").checked == "10 of 12 parameters (include blocks)"
    assert lint(folder, select="mlp").checked == "4 of 12 parameters (select 'mlp')"
    cli.main(["lint", str(folder)])
    assert "checked: all 12 parameters" in capsys.readouterr().out


def test_labels_are_paths(tmp_path):
    folder = put(tmp_path, series(), "step_{}.safetensors")
    put(folder, activations(2), "acts_step_{}.safetensors", first=3)
    assert all(Path(finding.label).exists() for finding in lint(folder))
