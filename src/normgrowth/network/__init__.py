"""Measurements by forward passes: the network with scaled weights, its limit, and its distance to that limit.

Everything here takes an `nn.Module`. Reading checkpoints is the task of `normgrowth.checkpoints`.

    saturation/, scaling/, heads/, behavior/   one package per verb: result.py has its result type, without torch; the
                                    others run the forward passes
    measure.py                      shared options of verbs; measures one or several models and joins the results
    compared_networks.py            the exact limit, c times the weights, hard attention: on the same inputs
    scaled_weights.py               a context in which all parameters are multiplied by c
    models/, inputs/                loading of models; texts and batches
"""
