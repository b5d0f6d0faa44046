"""Where two runs diverge, in one process: what is aligned, what counts as noise, which cause is named."""

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from compare.training import Settings, batch_of, model_of, optimizer_of, train
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

import normgrowth as ng
from normgrowth.cli.main import main
from normgrowth.compare.step_stages import STAGES
from normgrowth.errors import InputError
from normgrowth.records import Records
from normgrowth.report.sentences.comparison import verdict

ONE = Settings()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train a run once, and return the folder of its tracker."""
    folder, known = tmp_path_factory.mktemp("runs"), dict[Settings, Path]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is so small that threads would only wait for each other

    def run(settings: Settings) -> Path:
        if settings not in known:
            known[settings] = folder / str(len(known))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ng.SeriesWarning)
                train(settings, known[settings])
        return known[settings]

    yield run
    torch.set_num_threads(threads)


def changed(folder: Path, change) -> ng.Trace:
    """The trace of a folder, every row changed: change(row) -> row."""
    trace = ng.load(folder)
    rows = [change(row) for row in trace.records.table.to_pylist()]
    return replace(trace, records=Records(pa.Table.from_pylist(rows, trace.records.table.schema)))


def scaled(quantity: str, factor: float, *, step: int = 0, name: str = ""):
    """Multiply a quantity from a step on, of one tensor or of all."""

    def change(row):
        hit = row["quantity"] == quantity and row["step"] >= step and row["level"] == "tensor"
        return {**row, "value": row["value"] * factor} if hit and name in row["name"] else row

    return change


# --- alignment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_fsdp_wrapped_module.", "model.inner."])
def test_prefixes_of_wrappers_are_no_difference(runs, prefix):
    def renamed(row):
        return {**row, "name": prefix + row["name"]} if row["level"] == "tensor" else row

    found = ng.compare(runs(ONE), changed(runs(ONE), renamed))
    assert not found.parted
    assert len(found.alignment.names) == 51
    assert not found.alignment.only_a + found.alignment.only_b


def test_wrappers_in_the_middle_of_a_name(runs):
    def renamed(row):
        return {**row, "name": row["name"].replace("layers.1.", "layers.1._checkpoint_wrapped_module.")}

    found = ng.compare(changed(runs(ONE), renamed), runs(ONE))
    assert not found.alignment.only_a + found.alignment.only_b


def test_a_tied_weight_may_have_another_name(runs):
    def renamed(row):
        return {**row, "name": row["name"].replace("embedding.weight", "head.weight")}

    found = ng.compare(runs(ONE), changed(runs(ONE), renamed))
    assert not found.parted
    assert found.alignment.renamed == {"embedding.weight": "head.weight"}
    assert "embedding.weight is called head.weight in b" in str(found)


def test_steps_that_only_one_run_has_are_left_out(runs):
    found = ng.compare(runs(ONE), runs(replace(ONE, every=3)))
    assert not found.parted
    assert (found.alignment.steps, found.alignment.last_step) == (3, 6)  # 0, 3, 6


def test_runs_without_a_common_step_are_not_judged(runs, capsys, tmp_path):
    def later(row):
        return {**row, "step": row["step"] + 100}

    other = changed(runs(ONE), later)
    found = ng.compare(runs(ONE), other)
    assert not found.judged
    assert not found.parted
    other.save(tmp_path / "later")
    assert main(["compare", str(runs(ONE)), str(tmp_path / "later")]) == 1
    assert "cannot be compared" in capsys.readouterr().out


# --- causes that single processes show ------------------------------------------------------------------


def test_the_differences_are_those_of_the_records(runs):
    a, b = runs(ONE), runs(replace(ONE, lr=5e-4))
    found = ng.compare(a, b)
    norms = [Records.read(folder).where(level="tensor").matrix("norm", level="tensor") for folder in (a, b)]
    mine = found.matrix("weights_after", by="tensor", run="difference")
    for name in mine.names:
        x, y = (norm.curve(name) for norm in norms)
        wanted = np.divide(abs(x - y), np.maximum(x, y), out=np.zeros_like(x), where=np.maximum(x, y) > 0)
        np.testing.assert_allclose(mine.curve(name), wanted, rtol=1e-12)
    assert found.alignment.stages == STAGES


@pytest.mark.parametrize(
    ("b", "cause", "stage", "step"),
    [
        (replace(ONE, lr=5e-4), "learning_rate", "learning_rate", 1),
        (replace(ONE, decay=0.0), "decay", "decay_part", 1),
        (replace(ONE, decay=0.05), "decay", "decay_part", 1),
        (replace(ONE, optimizer="adam"), "decay_kind", "decay_part", 1),
        (replace(ONE, betas=(0.8, 0.999)), "optimizer", "gradient_part", 2),
        (replace(ONE, seed=3), "initialization", "weights_after", 0),
        (replace(ONE, fault="data"), "data", "gradient", 5),
        (replace(ONE, fault="missing"), "still", "gradient", 1),
        (replace(ONE, fault="untied"), "untied", "gradient", 1),
        (replace(ONE, fault="data", every=3), "between", "weights_before", 6),
    ],
)
def test_the_cause(runs, b, cause, stage, step):
    found = ng.compare(runs(replace(ONE, every=b.every)), runs(b))
    first = found.diagnoses[0]
    assert (first.cause, first.stage, first.step) == (cause, stage, step)
    assert len(found.diagnoses) == 1, "consequences are no causes"


def test_two_causes_are_both_named(runs):
    found = ng.compare(runs(ONE), changed(runs(replace(ONE, decay=0.0)), scaled("gradient_norm", 8.0)))
    assert [(one.cause, one.step) for one in found.diagnoses] == [("gradient_factor", 1), ("decay", 1)]


def test_differences_that_follow_from_a_cause_are_not_named(runs):
    found = ng.compare(runs(ONE), runs(replace(ONE, fault="data", decay=0.0)))
    assert [(one.cause, one.step) for one in found.diagnoses] == [("decay", 1)], "data differ later"
    late = changed(runs(replace(ONE, fault="data")), scaled("decay_step", 2.0, step=7))
    assert [(one.cause, one.step) for one in ng.compare(runs(ONE), late).diagnoses] == [("data", 5)]


def test_gradients_of_one_layer(runs):
    found = ng.compare(runs(ONE), changed(runs(ONE), scaled("gradient_norm", 1.01, step=4, name="layers.2.")))
    first = found.diagnoses[0]
    assert (first.cause, first.step, first.group) == ("part", 4, "layer 2")
    assert all(name.startswith("layers.2.") for name in first.tensors)


def test_gradients_of_one_role(runs):
    found = ng.compare(runs(ONE), changed(runs(ONE), scaled("gradient_norm", 1.01, name="norm1.weight")))
    assert (found.diagnoses[0].cause, found.diagnoses[0].group) == ("part", "role norm")


@pytest.mark.parametrize("factor", [8.0, 0.125, 65536.0])
def test_one_factor_for_all_gradients(runs, factor):
    found = ng.compare(runs(ONE), changed(runs(ONE), scaled("gradient_norm", factor)))
    first = found.diagnoses[0]
    assert (first.cause, first.step, len(first.tensors)) == ("gradient_factor", 1, 48)
    assert first.factor == pytest.approx(factor)
    assert ("loss scale that" in str(found)) == (factor == 65536.0)


def norms_of_tensors(run):
    """The norm of each tensor at each step."""
    norms = ng.load(run).matrix("norm", by="tensor")
    return {
        (step, name): value
        for step, row in zip(norms.steps.tolist(), norms.values, strict=True)
        for name, value in zip(norms.names, row, strict=True)
    }


def test_weights_that_change_outside_of_the_optimizer(runs):
    found = ng.compare(runs(ONE), changed(runs(ONE), scaled("norm", 1.1, step=4, name="up.weight")))
    assert (found.diagnoses[0].cause, found.diagnoses[0].step) == ("outside", 4)
    assert {one.stage for one in found.partings if one.step == 4} == {"weights_before", "weights_after"}


def test_weights_that_change_more_than_the_step_explains(runs):
    norm = norms_of_tensors(runs(ONE))

    def change(row):
        step, name, quantity = row["step"], row["name"], row["quantity"]
        if row["level"] != "tensor" or "up.weight" not in name or step < 4:
            return row
        before = norm[step - 1, name] * (1.0 if step == 4 else 1.1)
        new = {"norm": 1.1 * norm[step, name], "growth": (1.1 * norm[step, name]) ** 2 - before**2}
        return {**row, "value": new.get(quantity, row["value"])}

    found = ng.compare(runs(ONE), changed(runs(ONE), change))
    assert found.diagnoses[0].step == 4
    assert {one.stage for one in found.partings if one.step == 4} == {"weights_after"}


def test_weights_that_are_not_finite(runs):
    def broken(row):
        hit = row["step"] >= 4 and row["name"] == "layers.0.up.weight"
        value = {"norm": float("nan"), "nonfinite": 3.0}.get(row["quantity"], row["value"])
        return {**row, "value": value} if hit else row

    first = ng.compare(runs(ONE), changed(runs(ONE), broken)).diagnoses[0]
    assert (first.cause, first.step, first.tensors, first.run) == (
        "nonfinite",
        4,
        ("layers.0.up.weight",),
        "b",
    )


def first_cause(runs, a, b, **options):
    return ng.compare(runs(a), runs(b), **options).diagnoses[0]


@pytest.mark.parametrize("group", ["role embedding", "layer 1"])
def test_gradients_of_a_part_under_clipping(runs, group):
    """Clipping to one norm changes the gradients of all tensors if those of a part are larger."""
    clipped, fault = replace(ONE, clip=True), f"{group.split()[-1 if 'role' in group else 0]} is doubled"
    found = ng.compare(runs(clipped), runs(replace(clipped, fault=fault)))
    (only,) = found.diagnoses
    assert (only.cause, only.step, only.group) == ("part", 1, group)
    assert all(name.startswith("embedding" if "role" in group else "layers.1.") for name in only.tensors)
    ratio = [
        ng.load(runs(replace(clipped, fault=f))).matrix("gradient_norm", by="tensor") for f in ("", fault)
    ]
    a, b = (one.curve("layers.0.up.weight")[0] for one in ratio)
    assert only.factor == pytest.approx(b / a, rel=1e-4)
    assert only.factor < 0.999
    assert f"except for ×{only.factor:.4f}" in verdict(found)[0]


def test_a_factor_on_clipped_gradients(runs):
    """It is visible only if the runs recorded how much they clipped."""
    one = replace(ONE, clip=True, accumulate=4)
    summed = replace(one, fault="accumulation")
    assert not ng.compare(runs(one), runs(summed)).diagnoses
    one, summed = (replace(run, record_clipping=True) for run in (one, summed))
    (found,) = ng.compare(runs(one), runs(summed)).diagnoses
    assert (found.cause, found.step, found.factor) == ("gradient_factor", 1, pytest.approx(4, rel=1e-4))
    assert not ng.compare(runs(one), runs(replace(one, accumulate=2))).diagnoses
    (found,) = ng.compare(runs(one), runs(summed), control=runs(replace(one, accumulate=2))).diagnoses
    assert found.cause == "gradient_factor"
    (found,) = ng.compare(runs(one), runs(replace(one, threshold=0.025))).diagnoses
    assert (found.cause, found.factor) == ("clipping", pytest.approx(0.5, rel=1e-3))


def test_a_run_below_the_threshold_of_the_other_may_have_the_same_one(runs):
    """Gradients that are doubled reach a threshold that the others do not."""
    clipped = replace(ONE, clip=True)

    def smaller(row):
        return scaled("gradient_norm", 0.99 - 0.05 * row["step"])(row)

    large = runs(replace(clipped, fault="layer is doubled"))
    first = ng.compare(changed(runs(clipped), smaller), large).diagnoses[0]
    assert (first.cause, first.group) == ("part", "layer 1")
    assert ng.compare(runs(ONE), large).diagnoses[0].cause == "clipping"


def test_a_tensor_with_another_factor_is_no_example_of_the_common_one(runs):
    def change(row):
        return scaled("gradient_norm", 100.0, name="embedding")(scaled("gradient_norm", 3.0)(row))

    found = ng.compare(runs(ONE), changed(runs(ONE), change))
    first = found.diagnoses[0]
    assert (first.cause, first.outliers) == ("gradient_factor", ("embedding.weight",))
    assert first.factor == pytest.approx(3)
    assert first.b / first.a == pytest.approx(3)
    assert "embedding.weight" not in first.tensors
    assert "all tensors except embedding.weight are ×3" in verdict(found)[0]


def test_tensors_do_not_differ_alone_if_the_noise_floor_hides_the_others(runs):
    half = replace(ONE, dtype="bfloat16")

    def change(row):
        factor = 1.3 if "norm" in row["name"] else 1.08
        return scaled("gradient_norm", factor if row["step"] % 2 else 1 / factor)(row)

    first = ng.compare(runs(half), changed(runs(half), change)).diagnoses[0]
    assert (first.cause, first.step) == ("data", 1)
    assert len(first.tensors) < 24


def test_a_head_with_values_of_its_own_is_not_tied(runs):
    found = ng.compare(runs(ONE), runs(replace(ONE, fault="own head")))
    first = found.diagnoses[0]
    assert (first.cause, first.step, first.only_b) == ("untied", 1, ("head.weight",))
    assert first.tensors[0] == "embedding.weight"
    assert len(first.tensors) > 40
    assert "other initial values" in verdict(found)[0]


@pytest.mark.parametrize(
    ("b", "name", "values"),
    [
        ({"betas": (0.9, 0.95)}, "betas", ("(0.9, 0.999)", "(0.9, 0.95)")),
        ({"eps": 1e-4}, "eps", ("1e-08", "0.0001")),
        ({"amsgrad": True}, "amsgrad", ("False", "True")),
    ],
)
def test_a_setting_of_the_optimizer_is_named(runs, b, name, values):
    found = ng.compare(runs(ONE), runs(replace(ONE, **b)))
    assert [(one.name, one.a, one.b) for one in found.settings] == [(name, *values)]
    if found.parted:
        assert found.diagnoses[0].cause == "optimizer"
    assert f"{name} {values[0]} in a, {values[1]} in b" in " ".join(verdict(found))


def test_a_setting_of_the_optimizer_between_measured_steps(runs):
    rare = replace(ONE, every=4)
    found = ng.compare(runs(rare), runs(replace(rare, eps=1e-4)))
    assert (found.diagnoses[0].cause, found.diagnoses[0].step) == ("optimizer", 4)
    assert "eps 1e-08 in a, 0.0001 in b" in verdict(found)[0]


def test_the_classes_of_the_optimizers_are_named(runs):
    sgd = replace(ONE, optimizer="sgd")
    found = ng.compare(runs(ONE), runs(sgd))
    assert found.diagnoses[0].cause == "decay_kind"
    assert "class AdamW in a, SGD in b" in " ".join(verdict(found))
    found = ng.compare(runs(replace(ONE, decay=0.0)), runs(replace(sgd, decay=0.0)))
    assert found.diagnoses[0].cause == "optimizer"
    assert "class AdamW in a, SGD in b" in verdict(found)[0]


def test_a_small_difference_between_consecutive_steps_needs_no_shorter_interval(runs):
    later = changed(runs(ONE), scaled("norm", 1 + 2e-5, step=8, name="up.weight"))
    found = ng.compare(runs(ONE), later)
    assert found.partings[0].step - (found.partings[0].previous or 0) == 1
    assert "every=1" not in verdict(found)[0]


def test_negated_gradients(runs):
    """Their norms agree, so only cosines show them."""
    found = ng.compare(runs(ONE), runs(replace(ONE, fault="layer is negated")))
    first = found.diagnoses[0]
    assert (first.cause, first.stage, first.group) == ("optimizer", "step", "layer 1")
    assert first.cosines[0] == pytest.approx(-first.cosines[1], rel=0.1)
    assert "norms agree; the cosine of step and weights" in verdict(found)[0]
    assert "negated" in verdict(found)[0]
    state = replace(ONE, optimizer_state=True)
    found = ng.compare(runs(state), runs(replace(state, fault="layer is negated")))
    first = found.diagnoses[0]
    assert (first.cause, first.stage, first.group) == ("part", "gradient", "layer 1")
    assert first.cosines[0] == pytest.approx(-first.cosines[1])
    assert "norms agree; the cosine of gradient and weights" in verdict(found)[0]
    assert not ng.compare(runs(state), runs(replace(state, implementation="fused"))).parted


def test_a_layer_with_another_scale(runs):
    found = ng.compare(runs(ONE), runs(replace(ONE, fault="layer is larger")))
    first = found.diagnoses[0]
    assert (first.cause, first.step, first.group) == ("initialization", 0, "layer 1")
    assert first.factor == pytest.approx(1.001, rel=1e-6)
    assert "layer 1" in verdict(found)[0]
    assert "×1.001" in verdict(found)[0]
    assert "seed" not in verdict(found)[0]
    assert first_cause(runs, ONE, replace(ONE, seed=3)).factor is None


def test_parameters_that_were_not_measured_are_mentioned(runs):
    blocks = replace(ONE, include="blocks")
    found = ng.compare(runs(blocks), runs(replace(blocks, fault="embedding is doubled")))
    assert not found.parted, "the embedding was not measured"
    assert "blocks (48 of 51 tensors" in verdict(found)[1]
    assert 'include="all"' in verdict(found)[1]
    assert not any("measured" in text for text in verdict(ng.compare(runs(ONE), runs(ONE))))


# --- noise ----------------------------------------------------------------------------------------------


def test_a_run_and_itself_are_identical(runs):
    found = ng.compare(runs(ONE), runs(ONE))
    assert not found.parted
    assert found.noise.first_step is None
    assert "No difference: the norms of 51 tensors are identical at steps 0 to 8." in str(found)


def test_rounding_has_a_size_and_a_growth(runs):
    found = ng.compare(runs(ONE), runs(replace(ONE, implementation="fused")))
    assert not found.parted
    assert 0 < found.noise.first < 1e-6
    assert 1 < found.noise.growth < 10, "how fast rounding grows depends on the processor"
    assert f"×{found.noise.growth:.2f} per step" in str(found)


def test_the_growth_of_rounding_is_the_one_that_was_planted(runs):
    norm = norms_of_tensors(runs(ONE))

    def growing(row):
        step, name, quantity = row["step"], row["name"], row["quantity"]
        if row["level"] != "tensor" or quantity not in ("norm", "growth"):
            return row
        here = norm[step, name] * (1 + 1e-6 * 1.2**step)
        before = 0.0 if step == 0 else norm[step - 1, name] * (1 + 1e-6 * 1.2 ** (step - 1))
        return {**row, "value": here if quantity == "norm" else here**2 - before**2}

    found = ng.compare(runs(ONE), changed(runs(ONE), growing))
    assert not found.parted
    assert found.noise.first == pytest.approx(1e-6, rel=1e-3)
    assert found.noise.growth == pytest.approx(1.2, rel=1e-3)


def test_differences_may_grow_from_step_to_step_but_not_jump(runs):
    def growing(row):
        hit = row["quantity"] == "gradient_norm" and row["level"] == "tensor"
        return {**row, "value": row["value"] * (1 + 1e-6 * 3.0 ** row["step"])} if hit else row

    grown = ng.compare(runs(ONE), changed(runs(ONE), growing))
    assert not grown.parted
    last = grown.matrix("gradient", by="tensor", run="difference").values[-1]
    assert last.max() > 1e-3
    assert ng.compare(runs(ONE), changed(runs(ONE), scaled("gradient_norm", 1 + last.max(), step=6))).parted


# Relative differences at steps 1 to 8 of a T5 with ReLU (3 + 3 layers of 128; DDP and FSDP2 on 2 ranks): of the weights
# of all tensors, and of the gradients of some and of the others.
OF_WEIGHTS = (4.1e-9, 4.2e-9, 4.3e-9, 1.5e-7, 5.9e-7, 1.3e-6, 1.8e-6, 2.2e-6)
OF_GRADIENTS = {
    "layers.0.": (2.6e-8, 4.3e-7, 6.4e-7, 2.1e-4, 8.5e-4, 1.4e-3, 2.4e-3, 2.7e-3),
    "": (0.0, 5.6e-8, 1.3e-7, 1.1e-7, 2.0e-5, 2.4e-4, 2.6e-4, 2.4e-4),
}


def with_jump(run, factor=1.0, of_weights=1.0, kinds=OF_GRADIENTS):
    """The run with the differences of the T5. factor: of the differences of gradients from step 4 on."""
    norm = norms_of_tensors(run)

    def grown(step, name):
        return norm[step, name] * (1 + (of_weights * OF_WEIGHTS[step - 1] if step else 0.0))

    def change(row):
        step, name, quantity = row["step"], row["name"], row["quantity"]
        if row["level"] != "tensor" or not step:
            return row
        value = row["value"]
        if quantity == "gradient_norm":
            jump = next(values for part, values in kinds.items() if name.startswith(part))[step - 1]
            value *= 1 + jump * (factor if step >= 4 else 1.0)
        elif quantity == "norm":
            value = grown(step, name)
        elif quantity == "growth":
            value = grown(step, name) ** 2 - grown(step - 1, name) ** 2
        return {**row, "value": value}

    return changed(run, change)


def test_a_jump_by_a_relu_is_rounding(runs):
    """Rounding changes the sign of an input of a ReLU at step 4."""
    found = ng.compare(runs(ONE), with_jump(runs(ONE)))
    assert not found.parted
    differences = found.matrix("gradient", by="tensor", run="difference").values[1:]
    np.testing.assert_allclose(np.nanmax(differences, axis=1), OF_GRADIENTS["layers.0."], rtol=1e-2)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"factor": 100.0}, "part"),  # larger than kinks cause
        ({"of_weights": 0.0}, "part"),  # without rounding, no sign changes
        (
            {"kinds": {"": OF_GRADIENTS["layers.0."]}},
            "gradient_factor",
        ),  # kinks do not scale all gradients alike
    ],
)
def test_other_jumps_are_not_rounding(runs, changes, cause):
    found = ng.compare(runs(ONE), with_jump(runs(ONE), **changes))
    assert (found.diagnoses[0].cause, found.diagnoses[0].stage, found.diagnoses[0].step) == (
        cause,
        "gradient",
        4,
    )


def test_float64_has_no_jumps_by_relus(runs):
    double = replace(ONE, dtype="float64")
    assert ng.compare(runs(double), with_jump(runs(double), of_weights=1e-9)).diagnoses[0].stage == "gradient"


def test_a_control_run_is_the_noise_floor(runs):
    noisy = [runs(replace(ONE, dropout=0.1, fault=fault)) for fault in ("", "dropout")]
    third = replace(ONE, dropout=0.1, fault="dropout", implementation="foreach")
    assert ng.compare(*noisy).parted
    found = ng.compare(*noisy, control=runs(third))
    assert not found.parted
    assert found.noise.source == "control"
    floors = found.matrix("gradient", by="model", run="floor").values[1:, 0]
    assert floors.min() > 0.1
    slower = runs(replace(ONE, dropout=0.1, lr=1e-4))
    assert ng.compare(noisy[0], slower, control=runs(third)).diagnoses[0].cause == "learning_rate"


MIXED = replace(ONE, precision="autocast")


@pytest.mark.parametrize("b", [{"accumulate": 4}, {"implementation": "fused"}, {"accumulate": 2}])
def test_autocast_is_rounding_of_its_dtype(runs, b):
    found = ng.compare(runs(MIXED), runs(replace(MIXED, **b)))
    assert found.a.compute_dtypes == ("BF16",)
    assert not found.parted
    assert found.matrix("gradient", by="model", run="floor").values[1, 0] == pytest.approx(0.1)


def test_autocast_in_one_run_is_named(runs):
    found = ng.compare(runs(ONE), runs(MIXED))
    first = found.diagnoses[0]
    assert (first.cause, first.step, first.run, first.dtype) == ("precision", 1, "b", "BF16")
    assert "b computes in bfloat16" in verdict(found)[0]


@pytest.mark.parametrize(("fault", "cause"), [("layer is doubled", "part"), ("data", "data")])
def test_faults_under_autocast(runs, fault, cause):
    assert first_cause(runs, MIXED, replace(MIXED, fault=fault)).cause == cause


def test_a_control_run_that_is_identical_does_not_set_the_floor(runs):
    fused = replace(MIXED, implementation="fused")
    found = ng.compare(runs(MIXED), runs(fused), control=runs(MIXED))
    assert not found.parted
    assert found.noise.source == "dtypes"
    assert "The control run is identical to a" in str(found)
    floors = [
        one.matrix("gradient", by="model", run="floor").values
        for one in (found, ng.compare(runs(MIXED), runs(fused)))
    ]
    np.testing.assert_array_equal(*floors)


def test_gradients_of_key_biases_are_only_rounding(runs):
    """Also if the dtypes do not show how coarse the computation is, as in records of earlier versions."""

    def old(settings):
        return replace(ng.load(runs(settings)), compute_dtypes=())

    a, b, control = (old(replace(MIXED, accumulate=count)) for count in (1, 4, 2))
    found = ng.compare(a, b, control=control)
    gradients = [one.stage for one in found.partings if "k_proj.bias" in one.name]
    assert not gradients
    values = found.matrix("gradient", by="tensor", run="difference")
    floors = found.matrix("gradient", by="model", run="floor").values[:, 0]
    assert (values.curve("layers.0.attention.k_proj.bias") > floors).any(), "its differences exceed the floor"


def test_tolerance(runs):
    other = changed(runs(ONE), scaled("gradient_norm", 1.01))
    assert ng.compare(runs(ONE), other, tolerance=0.005).parted
    assert not ng.compare(runs(ONE), other, tolerance=0.02).parted
    with pytest.raises(InputError, match="tolerance"):
        ng.compare(runs(ONE), other, tolerance=-1.0)


# --- checkpoints ----------------------------------------------------------------------------------------


def checkpoints(settings: Settings, folder: Path, steps: int = 8) -> Path:
    """The weights of the same training before it, and after every second step."""
    folder.mkdir()
    model = model_of(settings)
    optimizer = optimizer_of(model, settings)
    for step in range(steps + 1):
        if step:
            torch.manual_seed(1000 * step)
            optimizer.zero_grad()
            tokens = batch_of(step, 0, settings)
            cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
        if step % 2 == 0:
            state = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
            save_file(state, folder / f"step_{step}.safetensors")
    return folder


def test_traces_of_checkpoints(tmp_path, runs):
    a = ng.trace(checkpoints(ONE, tmp_path / "a"), include="all", lint=False)
    same = ng.trace(checkpoints(ONE, tmp_path / "same"), include="all", lint=False)
    assert not ng.compare(a, same).parted
    b = ng.trace(checkpoints(replace(ONE, fault="data"), tmp_path / "b"), include="all", lint=False)
    found = ng.compare(a, b)
    first = found.diagnoses[0]
    assert (first.cause, first.step, first.previous) == ("between", 6, 4)
    # A tracker and checkpoints of the same run
    mixed = ng.compare(runs(ONE), a)
    assert not mixed.parted
    assert mixed.alignment.stages == ("weights_after",)
    assert mixed.alignment.steps == 5
    assert ng.compare(runs(replace(ONE, seed=3)), a).diagnoses[0].cause == "initialization"
    assert ng.compare(runs(replace(ONE, fault="data")), a).partings[0].step == 6
    still = ng.trace(
        checkpoints(replace(ONE, fault="missing"), tmp_path / "still"), include="all", lint=False
    )
    first = ng.compare(a, still).diagnoses[0]
    assert (first.cause, first.tensors) == ("still", ("layers.1.up.weight",))


def test_known_learning_rates_explain_the_weights_after_steps_that_were_not_measured(runs):
    found = ng.compare(runs(replace(ONE, every=5)), runs(replace(ONE, every=5, lr=3e-3)))
    assert {parting.stage for parting in found.partings if parting.step == 5} >= {
        "weights_before",
        "gradient",
    }
    (only,) = found.diagnoses
    assert (only.cause, only.step) == ("learning_rate", 5)
    assert only.factor == pytest.approx(3)
    (said,) = verdict(found)
    assert "The weights before this step differ, too" in said
    assert "agree" not in said
    every = ng.compare(runs(ONE), runs(replace(ONE, lr=3e-3)))
    assert every.diagnoses[0].step == 1
    assert verdict(every)[0].endswith("Weights and gradients agree.")


def test_runs_of_one_name_are_told_apart_by_their_folders(runs, tmp_path):
    folders = [Path(shutil.copytree(runs(ONE), tmp_path / name / "norms")) for name in "ab"]
    found = ng.compare(*folders)
    assert (found.a.source, found.b.source) == ("a/norms", "b/norms")
    page = ng.report(folders, tmp_path / "page.html").path.read_text(encoding="utf-8")
    assert "a/norms" in page
    assert "b/norms" in page


def test_records_of_layers_alone(runs):
    def without_tensors(folder):
        trace = ng.load(folder)
        return replace(trace, records=trace.records.without_tensors())

    found = ng.compare(without_tensors(runs(ONE)), without_tensors(runs(replace(ONE, lr=5e-4))))
    assert found.alignment.level == "layer"
    assert found.diagnoses[0].cause == "learning_rate"


# --- what is shown --------------------------------------------------------------------------------------


def test_exit_codes_and_json(runs, capsys, tmp_path):
    a, b = str(runs(ONE)), str(runs(replace(ONE, fault="missing")))
    assert main(["compare", a, a]) == 0
    assert main(["compare", a, b, "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["diagnoses"][0]["tensors"] == ["layers.1.up.weight"]
    assert main(["compare", a, b, "--tolerance", "0.9999"]) == 1, "1 against 0 is a difference of 1"
    assert main(["compare", a, a, "--control", b, "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "figures" / "comparison_heat_map.png").exists()


def test_saved_and_loaded(runs, tmp_path):
    found = ng.compare(runs(ONE), runs(replace(ONE, fault="missing")))
    again = ng.load(found.save(tmp_path / "compared"))
    assert isinstance(again, ng.Comparison)
    assert (again.diagnoses, again.partings, again.alignment, again.noise) == (
        found.diagnoses,
        found.partings,
        found.alignment,
        found.noise,
    )
    assert str(again) == str(found)


def test_heat_maps(runs, tmp_path):
    found = ng.compare(runs(ONE), runs(replace(ONE, fault="data")))
    rows = [line.split() for line in str(found).splitlines() if line.startswith("layer 1 ")]
    assert rows == [["layer", "1", "====#xxx"]]
    assert found.plot.names == ["heat_map", "growth"]
    for figure in (found.plot(), found.plot(stage="step"), found.plot.growth()):
        figure.savefig(tmp_path / "figure.png")
    with pytest.raises(InputError, match="stage"):
        found.plot(stage="loss")
    page = ng.report([found], tmp_path / "page.html").path.read_text(encoding="utf-8")
    assert "Where two runs diverge" in page
    assert "Relative difference of the gradient" in page
