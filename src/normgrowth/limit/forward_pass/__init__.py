"""Temporary changes to a model during a pass of the limit.

compiled.py      compiled modules run eagerly, with their original names
kernels.py       fused kernels of whole layers are off; autocast's cache is empty
module_hooks.py  hooks that track the running module and its output
saved_state.py   saved arguments and buffers, for a second pass with more orders
"""
