"""What is done to a model while a pass of the limit runs, and undone after it.

compiled.py      modules behind torch.compile run eagerly, under their own names
kernels.py       kernels that do a whole layer at once are off; autocast's cache is empty
module_hooks.py  in which module we are, and what came out of it
saved_state.py   arguments and buffers, for a second pass with more orders
"""
