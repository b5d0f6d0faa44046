"""What a forward pass says: the network under scaled weights, its limit, and how near it is to that limit.

Everything here takes an `nn.Module`; nothing here reads checkpoints (that is `normgrowth.checkpoints`).

    saturation.py, scaling.py, heads/heads.py   verbs and their results, without torch
    state_comparison.py, saturation_series.py, scaling_curves.py, heads/measurement.py   the passes behind them
    scaled_weights.py   the parameters are c times themselves for a while
    models/, inputs/    models by their names; texts and batches
"""
