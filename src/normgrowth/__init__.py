"""normgrowth: how a transformer's weights grow during training, what that does, and why.

The public names; each is loaded when it is first used, so that ``import normgrowth`` is instant.

    trace(source, out)        a series of checkpoints -> Trace
    open_source(source)       the series itself: steps, checkpoints, tensors
    Records                   the tidy table that every measurement writes
    load(folder)              a result that was saved, as the type that its verb returned
    Moments, quantities       the sums, and everything that follows from them
    lint(source)              what in a series cannot be trusted -> Findings
    fit(trace)                which growth law, with intervals and evidence -> Fits; also fit(steps, norms)
    dynamics(trace, schedule) why the norm grew: budget, direction, aligned or misaligned -> Dynamics
    predict_norm, equilibrium what a schedule predicts: aligned, misaligned, under weight decay
    saturate(model, c)        a context under which the parameters are c times themselves
    saturated(model)          the exact limit of the network as they grow
    degrees(model, ...)       the degree of every part, what outgrows what, what vanishes
    saturated_attention       attention as argmax or mean
    saturation(model, texts)  how close a network is to its saturated self, layer by layer
    saturation_profile(...)   the same for every checkpoint of a series, beside its trace
    heads(model, texts)       what every attention head does, and what its saturated self does
    scaling(model)            how it approaches its saturated limit as the weights grow -> Scaling
    sweep(settings, out)      where growth ends, over learning rate and weight decay or any two settings
    NormTracker(model, opt)   the quantities of trace in a training run, at each measured step
    write_report(folders)     one html page on everything that folders of ours hold
    InputError                what bad input raises: one line, with the way out
    UnsupportedOperation      what `saturated` raises for an operation without a rule; NoLimit: for a value without one
"""

from normgrowth.dynamics import dynamics
from normgrowth.fit import fit
from normgrowth.lint import lint
from normgrowth.trace import trace

TYPE_CHECKING = False  # as in typing, whose import takes long enough for a Ctrl-C to fall into
if TYPE_CHECKING:
    from typing import Any

    from normgrowth.checkpoints.series import open_source
    from normgrowth.cli.report import write_report
    from normgrowth.dynamics.equilibrium import equilibrium
    from normgrowth.dynamics.prediction import predict_norm
    from normgrowth.dynamics.result import Dynamics
    from normgrowth.errors import InputError, NoLimit, SeriesWarning, UnsupportedOperation
    from normgrowth.fit.result import Fits
    from normgrowth.lab.sweep import sweep
    from normgrowth.limit.degrees import degrees
    from normgrowth.limit.saturated import saturated
    from normgrowth.lint.result import Findings
    from normgrowth.moments.moments import Moments, quantities
    from normgrowth.network.heads.heads import heads
    from normgrowth.network.saturated_attention import saturated_attention
    from normgrowth.network.saturation import saturation
    from normgrowth.network.saturation_series import saturation_profile
    from normgrowth.network.scaled_weights import saturate
    from normgrowth.network.scaling import Scaling, scaling
    from normgrowth.records import Records
    from normgrowth.results import Result, load
    from normgrowth.trace.result import Trace
    from normgrowth.tracking.tracker import NormTracker

__all__ = [
    "Dynamics",
    "Findings",
    "Fits",
    "InputError",
    "Moments",
    "NoLimit",
    "NormTracker",
    "Records",
    "Result",
    "Scaling",
    "SeriesWarning",
    "Trace",
    "UnsupportedOperation",
    "degrees",
    "dynamics",
    "equilibrium",
    "fit",
    "heads",
    "lint",
    "load",
    "open_source",
    "predict_norm",
    "quantities",
    "saturate",
    "saturated",
    "saturated_attention",
    "saturation",
    "saturation_profile",
    "scaling",
    "sweep",
    "trace",
    "write_report",
]

_HOME = {
    "Dynamics": "normgrowth.dynamics.result",
    "Findings": "normgrowth.lint.result",
    "Fits": "normgrowth.fit.result",
    "InputError": "normgrowth.errors",
    "Moments": "normgrowth.moments.moments",
    "NoLimit": "normgrowth.errors",
    "NormTracker": "normgrowth.tracking.tracker",
    "Records": "normgrowth.records",
    "Result": "normgrowth.results",
    "Scaling": "normgrowth.network.scaling",
    "SeriesWarning": "normgrowth.errors",
    "Trace": "normgrowth.trace.result",
    "UnsupportedOperation": "normgrowth.errors",
    "degrees": "normgrowth.limit.degrees",
    "equilibrium": "normgrowth.dynamics.equilibrium",
    "heads": "normgrowth.network.heads.heads",
    "load": "normgrowth.results",
    "open_source": "normgrowth.checkpoints.series",
    "predict_norm": "normgrowth.dynamics.prediction",
    "quantities": "normgrowth.moments.moments",
    "saturate": "normgrowth.network.scaled_weights",
    "saturated": "normgrowth.limit.saturated",
    "saturated_attention": "normgrowth.network.saturated_attention",
    "saturation": "normgrowth.network.saturation",
    "saturation_profile": "normgrowth.network.saturation_series",
    "scaling": "normgrowth.network.scaling",
    "sweep": "normgrowth.lab.sweep",
    "write_report": "normgrowth.cli.report",
}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module 'normgrowth' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
