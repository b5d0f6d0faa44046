"""The stage `theory`: degrees, limits and constructed networks. `known_networks` computes its numbers."""

from normgrowth.paper.evidence import Theory
from normgrowth.paper.stages.stage import Stage, StageContext, StageSettings


def small_networks(context: StageContext, settings: StageSettings) -> Theory:
    from normgrowth.paper.stages import known_networks

    return known_networks.theory(context, settings)


THEORY = Stage(
    name="theory",
    title="degrees, limits and constructed networks",
    version=2,
    settings={"demo": StageSettings(), "paper": StageSettings()},
    takes={"demo": "8 seconds", "paper": "8 seconds"},
    run=small_networks,
    read=Theory.read,
)
