"""The parameters of a model, read from the names of its tensors.

parameter_names.py   parameter name -> layer, role, counted or not; blocks.py, roles.py: its rules
selection.py         which parameters a norm counts; adapters.py: LoRA factors
parameter_list.py    the result type `Parameters`: a list of all tensors
"""
