"""How saturation levels are measured."""

from dataclasses import dataclass, field

from normgrowth.errors import InputError
from normgrowth.network.hidden_states import States
from normgrowth.network.measure import PassOptions
from normgrowth.network.saturation.result import DecoderInput, Stack


@dataclass(frozen=True, kw_only=True)
class LevelOptions(PassOptions):
    """Options of `saturation`."""

    hard_attention: bool
    states: States | None = field(compare=False)
    stack: Stack | None
    decoder_input: DecoderInput
    as_published: bool
    random_init: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.exact or self.c or self.hard_attention):
            raise InputError("saturation needs exact=True, a value of c or hard_attention=True")
        if self.random_init < 0:
            raise InputError(f"random_init must be >= 0, got {self.random_init}")
