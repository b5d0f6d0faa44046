"""The published curves of Figure 4 as a result, drawn with measured curves but never merged with them."""

from normgrowth.network.scaling.result import ScaledNetwork, Scaling
from normgrowth.paper.published.tables import published
from normgrowth.records import Block, Records

KINDS = {"pre-norm": "paper_pre_norm", "post-norm": "post_norm"}  # the paper's name -> normgrowth's name
NOTE = (
    "In the authors' code of Figure 4 the switch for biases reaches the classifier alone, not the encoder that is "
    "compared; its masked scores are 0, so that the future leaks. All published lines would be of encoders with biases."
)


def figure4() -> Scaling:
    """A network for each line, with its `cosine_flattened` as `normgrowth.scaling` measures it."""
    table = published("scaling_curves")
    parts, networks = [], []
    for position, kind in KINDS.items():
        for bias in ("no-bias", "bias"):
            rows = (table["norm_position"] == position) & (table["bias"] == bias)
            run = f"published: {position}, {bias}"
            values = {"cosine_flattened": table["cosine_to_saturated"][rows][:, None]}
            points = table["c"][rows].tolist()
            block = Block("model", ["model"], [None], [None], points, values, axis="scale")
            parts.append(Records.from_blocks(run, [block]))
            networks.append(ScaledNetwork(run, kind=kind, bias=bias == "bias"))
    records = Records.joined(parts)
    return Scaling(records=records, source=table.source, networks=tuple(networks), notes=(NOTE,))
