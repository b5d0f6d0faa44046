"""Errors that a person can act on, and remarks that do not stop the work."""


class InputError(ValueError):
    """Something is wrong with what was given: one line that names the file, the tensor, the way out."""


class SeriesWarning(UserWarning):
    """The work was done, but the series has something its reader must know."""
