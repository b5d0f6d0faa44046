"""What forward passes measure: the network with scaled weights, its limit, and its distance to that limit.

Everything here takes an `nn.Module`; nothing here reads checkpoints (that is `normgrowth.checkpoints`).

    saturation/, scaling/, heads/, behavior/   one package per verb: the module of its name holds the verb and its
                                    result, without torch; the others hold the forward passes
    scaled_weights.py               a context in which all parameters are multiplied by c
    models/, inputs/                models by name; texts and batches
"""
