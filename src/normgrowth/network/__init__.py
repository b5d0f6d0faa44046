"""Measurements by forward passes: the network with scaled weights, its limit, and its distance to that limit.

Everything here takes an `nn.Module`. Reading checkpoints is the task of `normgrowth.checkpoints`.

    saturation/, scaling/, heads/, behavior/   one package per verb: the module of the same name has the function and
                                    its result type, without torch; the others run the forward passes
    scaled_weights.py               a context in which all parameters are multiplied by c
    models/, inputs/                loading of models; texts and batches
"""
