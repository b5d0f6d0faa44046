"""The numbers that the authors published in the paper and with their code; `load_published` returns them as results.

A published result has the type of a measured one, so that it is drawn, fitted and compared in the same way.
"""

from importlib import import_module

from normgrowth.errors import InputError
from normgrowth.results import Result

# name -> the function that returns the result
RESULTS = {
    "t5": "normgrowth.paper.published.figure1:t5_trace",
    "t5-encoder": "normgrowth.paper.published.figure1:t5_encoder",
    "t5-decoder": "normgrowth.paper.published.figure1:t5_decoder",
    "saturation": "normgrowth.paper.published.figure2:figure2",
    "heads": "normgrowth.paper.published.figure3:figure3",
    "scaling": "normgrowth.paper.published.figure4:figure4",
}


def load_published(name: str) -> Result:
    """A published result: "t5", "t5-encoder" and "t5-decoder" are Traces (Figure 1), "saturation" is a Saturation
    (Figure 2), "heads" Heads (Figure 3), "scaling" a Scaling (Figure 4).
    """
    if name not in RESULTS:
        raise InputError(f"unknown published result {name!r}; known: {', '.join(RESULTS)}")
    module, function = RESULTS[name].split(":")
    return getattr(import_module(module), function)()
