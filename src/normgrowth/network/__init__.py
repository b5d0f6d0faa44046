"""What a forward pass says: the network under scaled weights, its limit, and how near it is to that limit.

Everything here takes an `nn.Module`; nothing here reads checkpoints (that is `normgrowth.checkpoints`).

    encoders.py   the paper's encoder and its two cousins
    scaling.py    `saturate(model, c)`: the parameters are c times themselves for a while
"""
