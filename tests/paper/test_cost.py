"""What stages cost: operations of a real network, time that grows with steps and layers, and the lines that say it."""

import time
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from normgrowth.cli import main
from normgrowth.cli.reproduce import cost_lines
from normgrowth.lab.settings import preset
from normgrowth.network.models.encoders import LanguageModel
from normgrowth.paper.stages.cost import (
    TEXTS,
    Cost,
    Machine,
    Text,
    evaluating,
    forward,
    lab_cost,
    span,
    steps_of,
    sweep_cost,
    this_machine,
    training,
)
from normgrowth.paper.stages.plan import stages

MACHINE = Machine(cores=2, speed=50e9)
PAPER = preset("paper", "penn")


def test_operations_are_those_that_a_network_does():
    """Counted by PyTorch, forward and backward: the sentence is as long as the text's mean."""
    settings = preset("paper", "x", layers=3, width=48, heads=4, feedforward=80, batch=4, epochs=1)
    text = Text(vocabulary=100, sentences=4, tokens=4 * 32, dev_tokens=4 * 32)
    model = LanguageModel(settings.encoder(text.vocabulary, 32))
    ids = torch.zeros(4, 32, dtype=torch.int64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as ahead:
            logits = model(ids)
        with FlopCounterMode(display=False) as back:
            logits.sum().backward()
    assert evaluating(settings, text) == pytest.approx(ahead.get_total_flops(), rel=0.01)
    assert training(settings, text) == pytest.approx(
        ahead.get_total_flops() + back.get_total_flops(), rel=0.02
    )


def test_sizes_of_the_paper_s_corpora(data):
    from normgrowth.lab.data.corpus import describe, load_corpus

    for name, text in TEXTS.items():
        found = describe(load_corpus(name, data))
        assert text.vocabulary == found["vocabulary"]
        assert text.sentences == found["sentences"]["train"]
        assert (text.tokens, text.dev_tokens) == (found["tokens"]["train"], found["tokens"]["valid"])


def test_time_grows_with_steps_layers_and_models():
    def seconds(*models):
        return sweep_cost(models).on(MACHINE, 1)

    text = TEXTS["penn"]
    short, long = (replace(PAPER, steps=steps) for steps in (1000, 2000))
    assert training(long, text) == 2 * training(short, text)
    assert seconds(long) > 1.8 * seconds(short)
    assert steps_of(replace(PAPER, epochs=2), text) == 2 * steps_of(replace(PAPER, epochs=1), text)
    per_layer = [forward(replace(PAPER, layers=layers), text) for layers in (6, 12, 18)]
    assert per_layer[2] - per_layer[1] == pytest.approx(per_layer[1] - per_layer[0])
    assert per_layer[1] > 1.5 * per_layer[0]
    assert seconds(PAPER, PAPER) == 2 * seconds(PAPER)
    often = replace(PAPER, evaluate="powers")
    assert lab_cost([often]).on(MACHINE, 1) > lab_cost([PAPER]).on(MACHINE, 1)


def test_tasks_share_the_workers():
    assert span([3, 3, 2, 2], 2) == 5
    assert span([3, 3, 2, 2], 9) == 3
    cost = Cost("", seconds=1.0, tasks=((8.0,) * 4, (4.0,)))
    assert cost.on(Machine(4, 2.0), 4) == 1 + 4 + 2
    assert cost.on(Machine(4, 2.0), 2) == 1 + 8 + 2
    assert cost.on(Machine(2, 2.0), 4) == 1 + 8 + 4  # two cores for four workers: each has half of one
    assert replace(cost, on_gpu=True).on(Machine(2, 2.0, gpu=80.0), 2) == 1 + (16 + 4) / 40
    assert Cost("nothing", 7.0).on(None, 2) == 7
    with pytest.raises(ValueError, match="a machine says"):
        cost.on(None, 2)


def test_the_paper_s_sizes_take_days():
    """Unit costs of two cores once gave 185 and 1,600 hours."""
    hours = {stage.name: stage.cost.on(MACHINE, 2) / 3600 for stage in stages("paper")}
    assert 90 < hours["lab"] < 370
    assert 800 < hours["sweep"] < 3200
    assert hours["theory"] + hours["scaling"] + hours["pretrained"] < 2
    demo = {stage.name: stage.cost.on(None, 2) / 60 for stage in stages("demo")}
    assert sum(demo.values()) < 30


def test_a_machine_is_measured_in_a_moment():
    threads, start = torch.get_num_threads(), time.monotonic()
    found = this_machine(0.05)
    assert time.monotonic() - start < 20
    assert found.cores >= 1
    assert 1e8 < found.speed < 1e13
    assert torch.get_num_threads() == threads


def test_what_is_trained_and_how_long_is_said():
    lines = cost_lines(stages("paper"), MACHINE)
    (lab,) = (line for line in lines if line.startswith("lab"))
    hours = stages("paper")[3].cost.on(MACHINE, 2) / 3600
    assert "trains 16 models of 12 layers of 768, each 5 epochs of wikitext-2 or penn" in lab
    assert f"about {hours:,.0f} hours" in lab
    slower = cost_lines(stages("paper"), replace(MACHINE, speed=25e9))
    assert f"about {2 * hours:,.0f} hours" in slower[3]
    text = "\n".join(lines)
    assert "in total about 1," in text
    assert "divides lab into 8 tasks and then 8 tasks, sweep into 400 tasks" in text
    assert "400 cores: about" in text


def test_the_command_says_it_before_it_starts(capsys):
    assert main(["reproduce", "--scale", "paper", "--list", "--only", "fig6,norm-sqrt"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("sweep: Figure 6: learning rate × weight decay; trains 400 models of 12 layers")
    assert said[0].endswith(" hours")
    assert said[1].startswith("in total about")
    assert said[2].startswith("--engine ray divides sweep into 400 tasks")
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said[:5]] == ["theory", "scaling", "pretrained", "lab", "sweep"]
    assert said[5].endswith("on two cores")
    assert "ray" not in "".join(said)
