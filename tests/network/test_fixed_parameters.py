"""Parameters held fixed in `saturation`, `heads` and `scaling`: levels against passes made by hand."""

import copy
import json

import numpy as np
import pytest
import torch
from tiny_configs import tiny_config
from torch import nn

import normgrowth
from normgrowth.cli.main import main
from normgrowth.errors import FolderMismatch, InputError, NoLimit
from normgrowth.limit.saturated import saturated
from normgrowth.network.heads.patterns import patterns
from normgrowth.network.models.load import LoadedModel
from normgrowth.network.scaled_weights import scaled_weights
from normgrowth.records import Records
from normgrowth.scaling import scaling

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.tensor([[3, 4, 5, 9, 7, 2], [5, 5, 8, 1, 2, 6]])
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
NORMS = ["*.LayerNorm.*", "*LayerNorm.weight"]


def tiny(name, **options):
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(tiny_config(name), **options).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


@pytest.fixture(scope="module")
def mamba():
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, state_size=4)
    return transformers.MambaModel(config).double().eval()


def saturation(*arguments, **options):
    return normgrowth.saturation(*arguments, **options).records


def heads(*arguments, **options):
    return normgrowth.heads(*arguments, **options).records


def levels(records, quantity, scale=None):
    rows = records.where(quantity=quantity, level="layer", scale=scale)
    return np.array([row["value"] for row in rows.table.to_pylist()])


def mean_cosines(model, other):
    """Of every state, between the network and another one of the same shape, mean over tokens."""
    with torch.no_grad():
        own = model(input_ids=IDS, output_hidden_states=True).hidden_states
        states = other(input_ids=IDS, output_hidden_states=True).hidden_states
        return np.array(
            [float(torch.cosine_similarity(a, b, dim=-1).mean()) for a, b in zip(own, states, strict=True)]
        )


def scaled_by_hand(model, c, held):
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            parameter.mul_(1.0 if held(name) else c)
    return found


def test_saturation_of_a_state_space_model(mamba):
    with pytest.raises(NoLimit) as caught:
        saturation(mamba, inputs=[BATCH])
    assert caught.value.module == "layers.0.mixer"  # not of the wrapper around the network
    assert caught.value.parameters == ("layers.0.mixer.A_log",)
    result = normgrowth.saturation(mamba, inputs=[BATCH], fixed=["*.A_log"], c=(4,))
    records = result.records
    limit = saturated(mamba, fixed=["*.A_log"])
    assert levels(records, "saturation") == pytest.approx(mean_cosines(mamba, limit), abs=1e-12)
    scaled = scaled_by_hand(mamba, 4, lambda name: name.endswith("A_log"))
    assert levels(records, "saturation", 4) == pytest.approx(mean_cosines(mamba, scaled), abs=1e-12)
    assert list(result.fixed) == ["*.A_log"]
    assert "held fixed: *.A_log; all other parameters grow" in result.notes


def test_saturation_of_random_networks_holds_the_same_parameters(mamba):
    records = saturation(mamba, inputs=[BATCH], fixed=["*.A_log"], c=(), random_init=2)
    assert np.isfinite(levels(records, "saturation_random")).all()


def test_names_are_those_of_the_model_even_if_only_its_encoder_is_measured():
    model = tiny("t5")
    found = saturation(model, inputs=[BATCH], fixed=["encoder.*.wo.weight"], c=())
    with pytest.raises(InputError, match=r"no parameter matches 'block\.0\.\*'"):
        saturation(model, inputs=[BATCH], fixed=["block.0.*"], c=())
    limit = saturated(model.get_encoder(), fixed=["*.wo.weight"])
    assert levels(found, "saturation") == pytest.approx(mean_cosines(model.get_encoder(), limit), abs=1e-12)
    decoder = saturation(model, inputs=[BATCH], fixed=["decoder.final_layer_norm.weight"], c=())
    assert levels(decoder, "saturation") == pytest.approx(
        levels(saturation(model, inputs=[BATCH], c=()), "saturation"), abs=1e-12
    )


def test_heads():
    model = tiny("bert", attn_implementation="eager")
    result = normgrowth.heads(model, inputs=[BATCH], fixed=NORMS, c=(1e6,))
    records = result.records
    weights = saturated(model, fixed=NORMS)(input_ids=IDS, output_attentions=True).attentions
    largest = np.array([w.amax(-1).mean((0, 2)).tolist() for w in weights]).flatten()
    found = [
        row["value"]
        for row in records.where(quantity="saturated_largest_share", level="head").table.to_pylist()
    ]
    assert found == pytest.approx(largest, abs=1e-12)
    exact, scaled = (
        records.where(quantity="attended", level="head", scale=c).table["value"].to_pylist()
        for c in (None, 1e6)
    )
    assert exact == pytest.approx(scaled)
    assert list(result.fixed) == NORMS
    assert f"held fixed: {', '.join(NORMS)}; all other parameters grow" in result.notes


def test_patterns_of_a_sentence():
    model = tiny("bert", attn_implementation="eager")
    name = "layer.1.head.0"
    found = patterns(LoadedModel("bert", model), "one two three four", [name], fixed=["*"])[0].heads[name]
    assert found.saturated == found.soft  # nothing grows


def test_scaling(mamba):
    result = scaling(mamba, BATCH, fixed=["*.A_log"], c=[1.0, 2.0, 4.0])
    records = result.records
    limit = saturated(mamba, fixed=["*.A_log"])
    wanted = limit(input_ids=IDS, output_hidden_states=True).hidden_states[-1]
    with torch.no_grad(), scaled_weights(mamba, 4.0, fixed=["*.A_log"]):
        own = mamba(input_ids=IDS, output_hidden_states=True).hidden_states[-1]
    degree = float(limit.degrees[""])
    error = float((own / 4**degree - wanted).norm() / wanted.norm())
    rows = records.where(quantity="scaling_error", level="model").table.to_pylist()
    assert rows[-1]["value"] == pytest.approx(error, rel=1e-6)
    norms = records.where(quantity="scaled_norm").table.to_pylist()
    grown = [p.detach().square().sum() for n, p in mamba.named_parameters() if not n.endswith("A_log")]
    assert norms[0]["value"] == pytest.approx(float(sum(grown).sqrt()), rel=1e-9)
    assert result.fixed == ("*.A_log",)


def test_names_of_parameters_with_special_characters():
    """A bracket begins a set in a pattern; a name that was found must match itself."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({"a[0]": nn.Linear(3, 3)})

        def forward(self, x):
            return self.layers["a[0]"](x)

    def states(model, batch):
        return [batch, model(batch)]

    torch.manual_seed(0)
    model, x = Odd().double(), torch.randn(2, 4, 3).double()
    records = saturation(model, inputs=[x], fixed=["*.bias"], c=(1e9,), states=states)
    assert levels(records, "saturation") == pytest.approx(levels(records, "saturation", 1e9), abs=1e-8)


def test_a_series(tmp_path):
    model = tiny("gpt2").float()
    series = tmp_path / "series"
    series.mkdir()
    torch.save(model.state_dict(), series / "step_1.pt")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    torch.save(model.state_dict(), series / "step_2.pt")
    held = ["*.mlp.c_proj.weight"]
    out = tmp_path / "out"
    result = normgrowth.saturation(series, ["a b c"], config=model, out=out, fixed=held, c=())
    records = result.records
    alone = saturation(model, ["a b c"], fixed=held, c=())
    last = records.where(quantity="saturation", level="layer", step=2).table.to_pylist()
    assert [row["value"] for row in last] == pytest.approx(levels(alone, "saturation"), abs=1e-6)
    assert list(result.fixed) == held
    with pytest.raises(FolderMismatch, match="fixed"):
        saturation(series, ["a b c"], config=model, out=out, c=())
    again = saturation(series, ["a b c"], config=model, out=tmp_path / "all", c=())
    assert levels(again, "saturation") != pytest.approx(levels(records, "saturation"), abs=1e-6)


@pytest.mark.parametrize("command", ["saturation", "heads", "scaling"])
def test_the_command_and_its_output_folder(command, tmp_path, capsys):
    folder, out = tmp_path / "bert", tmp_path / "out"
    tiny_config("bert").save_pretrained(folder)
    (tmp_path / "text.txt").write_text("The cat sat.\n")
    more = ["--scales", "3"] if command == "scaling" else []
    asked = [command, str(folder), "--text", str(tmp_path / "text.txt"), *more]
    held = ["--fixed", "*.LayerNorm.*", "*.bias"]
    assert main([*asked, *held, "-o", str(out), "--json"]) == 0
    assert "held fixed: *.LayerNorm.*, *.bias; all other parameters grow" in capsys.readouterr().out
    assert json.loads((out / "request.json").read_text())["request"]["fixed"] == held[1:]
    assert main([*asked, "-o", str(out)]) == 2  # another request
    assert "fixed" in capsys.readouterr().err
    with_fixed = Records.read(out).table
    assert main([*asked, "-o", str(out), "--overwrite"]) == 0
    assert not Records.read(out).table.equals(with_fixed)
    assert main([*asked, "--fixed", "*.A_log"]) == 2
    assert "fixed: no parameter matches '*.A_log'" in capsys.readouterr().err


def test_the_encoders_of_the_paper_hold_nothing_fixed(capsys):
    assert main(["scaling", "paper", "--fixed", "*.bias"]) == 2
    assert "fixed cannot be used" in capsys.readouterr().err
