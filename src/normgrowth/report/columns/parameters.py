"""Parameters: a row for each tensor, with its layer and role, and whether it is counted or why not."""

from normgrowth.checkpoints.parameters.parameter_list import Parameters
from normgrowth.report.sentences.parameters import role
from normgrowth.report.table_columns import PAGE_ONLY, Column, numbers, words


def columns(listed: Parameters) -> list[Column]:
    return [
        words("counted", ["✓" if one.counted else "" for one in listed]),
        words("tensor", [one.name for one in listed]),
        words("shape", ["×".join(map(str, one.shape)) or "scalar" for one in listed], 1),
        numbers("values", [one.numel for one in listed], "{:,.0f}".format, PAGE_ONLY),
        words("dtype", [one.dtype for one in listed], 2),
        words("layer", [one.layer_name for one in listed]),
        words("role", [role(one) for one in listed], widest=0.25),
    ]
