"""The stages of `reproduce`, in the order in which they run."""

from typing import Any

from normgrowth.paper.stages.decay_grid import DECAY
from normgrowth.paper.stages.figure2_forms import FIGURE2_FORMS
from normgrowth.paper.stages.language_models import LANGUAGE_MODELS
from normgrowth.paper.stages.pretrained_models import PRETRAINED
from normgrowth.paper.stages.scaling_curves import SCALING
from normgrowth.paper.stages.stage import Stage
from normgrowth.paper.stages.theory import THEORY

STAGES: dict[str, Stage[Any]] = {
    stage.name: stage for stage in (THEORY, SCALING, PRETRAINED, FIGURE2_FORMS, LANGUAGE_MODELS, DECAY)
}
