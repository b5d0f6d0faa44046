"""Reports: what records say, as figures and as text. Reads records and nothing else.

Names in records come from checkpoints, which anyone may have written: every one of them is shown
as it is spelt, and none is obeyed, be it markup, mathematics or a terminal's control characters.
"""
