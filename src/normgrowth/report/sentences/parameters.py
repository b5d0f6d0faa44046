"""Sentences on how the tensors of a checkpoint are counted."""

from collections.abc import Iterable

from normgrowth.checkpoints.parameters.parameter_list import Kind, Parameter, Parameters

NOT_PARAMETERS: dict[Kind, str] = {
    "optimizer": "tensors of optimizer or training state",
    "buffer": "buffers",
    "tied": "additional names of tied parameters",
}


def sentences(listed: Parameters) -> list[str]:
    """How many tensors and parameters are counted, and which tensors are not parameters."""
    own = listed.of_kind("parameter")
    counted = [parameter for parameter in own if parameter.counted]
    tensors = f"{len(counted):,} of {len(own):,} tensors"
    said = [f"{tensors} are counted, with {_values(counted):,} of {_values(own):,} parameters."]
    for kind, called in NOT_PARAMETERS.items():
        if apart := listed.of_kind(kind):
            said.append(f"Not parameters: {len(apart):,} {called}, {_values(apart):,} values.")
    return said


def role(parameter: Parameter) -> str:
    """The role of a tensor, and the reason if it is not counted."""
    role, reason = parameter.role, parameter.reason
    if parameter.counted:
        return role
    said = {"": "", role: "outside the blocks", "excluded": "matches --exclude"}.get(reason, reason)
    left_out = f"excluded: {said}" if said else "excluded"
    return left_out if not role or said.startswith(role) else f"{role}, {left_out}"


def _values(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)
