"""normgrowth: how a transformer's weights grow during training, why they grow, and what the growth does.

The public names. Most are loaded on first use, so ``import normgrowth`` is fast.

    trace(source, out)        measure a series of checkpoints -> Trace
    parameters(source)        layer and role of each tensor, and which ones are counted -> Parameters
    open_source(source)       open a series: its steps, checkpoints and tensors
    Records                   the tidy table of measured values
    load(folder)              load a saved result as the type that its verb returned
    Moments, quantities       sums over tensors, and the quantities computed from them
    lint(source)              check the integrity of a series -> Findings
    compare(a, b)             where two runs diverge and why, with their growth side by side -> Comparison
    fit(trace)                fit growth laws, with confidence intervals -> Fits; also fit(steps, norms)
    dynamics(trace, schedule) why the norm grew: budget, direction, aligned or misaligned -> Dynamics
    predict_norm, equilibrium the norm that a schedule predicts: aligned, misaligned, with weight decay
    scaled_weights(model, c)  context manager that multiplies the parameters by c
    load_model(source)        load a model by name, with its tokenizer -> LoadedModel
    saturated(model)          the exact limit of the network as its weights grow
    degrees(model, inputs)    homogeneity degree of every module, and terms that vanish in the limit -> Degrees
    saturated_attention       attention in the limit: the argmax, or the mean over ties
    saturation(model, texts)  how close a network is to its saturated limit, layer by layer -> Saturation;
                              with config=, for every checkpoint of a series
    heads(model, texts)       what every attention head does, soft and saturated -> Heads
    scaling(model)            how a model approaches its saturated limit as its weights grow -> Scaling
    behavior(model, texts)    what a language model predicts, soft and saturated -> Behavior
    train(settings, out)      train a language model as in the paper, and measure it during training -> Run
    preset(name, corpus)      settings of a training run: "tiny", "small" or "paper" -> TrainSettings
    sweep(settings, out)      final growth over learning rate and weight decay, or any two settings (Axis) -> Sweep
    reproduce(out)            reproduce the claims of the paper, with verdicts and figures -> Reproduction
    NormTracker(model, opt)   measure the quantities of `trace` during a training run
    NormCallback(every=10)    a NormTracker for the Trainer of transformers
    report(results)           one self-contained HTML page for results and folders -> Page
    InputError                raised for invalid input; its message says what to do
    UnsupportedOperation      raised by `saturated` for an operation without a rule; NoLimit: a value has no limit
"""

from normgrowth.behavior import behavior
from normgrowth.compare import compare
from normgrowth.degrees import degrees
from normgrowth.dynamics import dynamics
from normgrowth.fit import fit
from normgrowth.heads import heads
from normgrowth.lint import lint
from normgrowth.parameters import parameters
from normgrowth.report import report
from normgrowth.reproduce import reproduce
from normgrowth.saturation import saturation
from normgrowth.scaling import scaling
from normgrowth.sweep import sweep
from normgrowth.trace import trace
from normgrowth.train import train

TYPE_CHECKING = False  # importing typing is slow, and Ctrl-C during an import prints a traceback
if TYPE_CHECKING:
    from typing import Any

    from normgrowth.checkpoints.parameters.parameter_list import Parameters
    from normgrowth.checkpoints.series import open_source
    from normgrowth.compare.result import Comparison
    from normgrowth.dynamics.equilibrium import equilibrium
    from normgrowth.dynamics.prediction import predict_norm
    from normgrowth.dynamics.result import Dynamics
    from normgrowth.errors import InputError, NoLimit, SeriesWarning, UnsupportedOperation
    from normgrowth.fit.result import Fits
    from normgrowth.lab.cells.axis import Axis
    from normgrowth.lab.run import Run
    from normgrowth.lab.settings import TrainSettings, preset
    from normgrowth.lab.sweep_result import Sweep
    from normgrowth.limit.result import Degrees
    from normgrowth.limit.saturated import saturated
    from normgrowth.lint.result import Findings
    from normgrowth.moments.moments import Moments, quantities
    from normgrowth.network.behavior.result import Behavior
    from normgrowth.network.heads.result import Heads
    from normgrowth.network.models.load import LoadedModel, load_model
    from normgrowth.network.saturated_attention import saturated_attention
    from normgrowth.network.saturation.result import Saturation
    from normgrowth.network.scaled_weights import scaled_weights
    from normgrowth.network.scaling.result import Scaling
    from normgrowth.paper.reproduction import Reproduction
    from normgrowth.records import Records
    from normgrowth.report.page.page_file import Page
    from normgrowth.results import Result, load
    from normgrowth.trace.result import Trace
    from normgrowth.tracking.integrations.transformers import NormCallback
    from normgrowth.tracking.tracker import NormTracker

__all__ = [
    "Axis",
    "Behavior",
    "Comparison",
    "Degrees",
    "Dynamics",
    "Findings",
    "Fits",
    "Heads",
    "InputError",
    "LoadedModel",
    "Moments",
    "NoLimit",
    "NormCallback",
    "NormTracker",
    "Page",
    "Parameters",
    "Records",
    "Reproduction",
    "Result",
    "Run",
    "Saturation",
    "Scaling",
    "SeriesWarning",
    "Sweep",
    "Trace",
    "TrainSettings",
    "UnsupportedOperation",
    "behavior",
    "compare",
    "degrees",
    "dynamics",
    "equilibrium",
    "fit",
    "heads",
    "lint",
    "load",
    "load_model",
    "open_source",
    "parameters",
    "predict_norm",
    "preset",
    "quantities",
    "report",
    "reproduce",
    "saturated",
    "saturated_attention",
    "saturation",
    "scaled_weights",
    "scaling",
    "sweep",
    "trace",
    "train",
]

_HOME = {
    "Axis": "normgrowth.lab.cells.axis",
    "preset": "normgrowth.lab.settings",
    "Comparison": "normgrowth.compare.result",
    "Degrees": "normgrowth.limit.result",
    "Heads": "normgrowth.network.heads.result",
    "Dynamics": "normgrowth.dynamics.result",
    "Findings": "normgrowth.lint.result",
    "Fits": "normgrowth.fit.result",
    "InputError": "normgrowth.errors",
    "LoadedModel": "normgrowth.network.models.load",
    "Moments": "normgrowth.moments.moments",
    "NoLimit": "normgrowth.errors",
    "NormCallback": "normgrowth.tracking.integrations.transformers",
    "NormTracker": "normgrowth.tracking.tracker",
    "Page": "normgrowth.report.page.page_file",
    "Parameters": "normgrowth.checkpoints.parameters.parameter_list",
    "Records": "normgrowth.records",
    "Reproduction": "normgrowth.paper.reproduction",
    "Result": "normgrowth.results",
    "Run": "normgrowth.lab.run",
    "Saturation": "normgrowth.network.saturation.result",
    "Behavior": "normgrowth.network.behavior.result",
    "Scaling": "normgrowth.network.scaling.result",
    "SeriesWarning": "normgrowth.errors",
    "Sweep": "normgrowth.lab.sweep_result",
    "Trace": "normgrowth.trace.result",
    "TrainSettings": "normgrowth.lab.settings",
    "UnsupportedOperation": "normgrowth.errors",
    "equilibrium": "normgrowth.dynamics.equilibrium",
    "load": "normgrowth.results",
    "load_model": "normgrowth.network.models.load",
    "open_source": "normgrowth.checkpoints.series",
    "predict_norm": "normgrowth.dynamics.prediction",
    "quantities": "normgrowth.moments.moments",
    "scaled_weights": "normgrowth.network.scaled_weights",
    "saturated": "normgrowth.limit.saturated",
    "saturated_attention": "normgrowth.network.saturated_attention",
}


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version

        return version("normgrowth")
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'normgrowth' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
