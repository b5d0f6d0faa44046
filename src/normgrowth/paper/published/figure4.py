"""The published curves of Figure 4 as records: laid over measured ones, never mixed with them."""

from normgrowth.paper.published.tables import published
from normgrowth.records import Block, Records

KINDS = {"pre-norm": "paper_pre_norm", "post-norm": "post_norm"}  # the paper's words, and ours
NOTE = (
    "In the authors' code of Figure 4 the switch for biases reaches the classifier alone, not the encoder that is "
    "compared; its masked scores are 0, so that the future leaks. All published lines would be of encoders with biases."
)


def figure4_records() -> Records:
    """A run for each line: `scale` and `cosine_flattened`, as `normgrowth.network.scaling` measures them."""
    table = published("scaling_curves")
    parts, runs = [], {}
    for position, kind in KINDS.items():
        for bias in ("no-bias", "bias"):
            rows = (table["norm_position"] == position) & (table["bias"] == bias)
            run = f"published: {position}, {bias}"
            values = {"scale": table["c"][rows], "cosine_flattened": table["cosine_to_saturated"][rows]}
            values = {name: column[:, None] for name, column in values.items()}
            block = Block("model", ["model"], [None], [None], list(range(int(rows.sum()))), values)
            parts.append(Records.from_blocks(run, [block], {}))
            runs[run] = {"group": run, "kind": kind, "bias": bias == "bias"}
    made_by = {"command": "published", "source": table.source, "runs": runs, "notes": [NOTE]}
    return Records.joined(parts, made_by)
