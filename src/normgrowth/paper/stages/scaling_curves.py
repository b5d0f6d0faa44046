"""The stage `scaling`: the paper's encoders at its size, and their cosine to the saturated network as weights grow."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings
from normgrowth.stored_result import StoredResult


@dataclass(frozen=True)
class Curves(StageSettings):
    """The settings of the curves. points: number of scales c from 1 to 10."""

    seeds: tuple[int, ...]
    points: int


def scaling_curves(context: StageContext, settings: Curves) -> StoredResult:
    from normgrowth.network.scaling.curves import paper_configs
    from normgrowth.network.scaling.result import Scaling, joined_scalings
    from normgrowth.scaling import scaling

    configs, parts = paper_configs(), []
    c = np.geomspace(1, 10, settings.points).tolist()
    for i, config in enumerate(configs):

        def measured(config: Any = config) -> StoredResult:
            return scaling(config, c=c, seeds=list(settings.seeds)).stored

        parts.append(Scaling.from_stored(context.cached(f"part-{i}", measured)))
        context.done(i + 1, len(configs), config.kind)
    return joined_scalings(parts).stored


SCALING = Stage(
    name="scaling",
    title="Figure 4: cosine of 12 layers of 768 to the saturated network, against c",
    version=1,
    settings={"demo": Curves(seeds=(0,), points=10), "paper": Curves(seeds=(0, 1, 2), points=49)},
    takes={"demo": "25 seconds", "paper": "6 minutes"},
    run=scaling_curves,
)
