"""The error for malformed bundles, to which the caller adds the path."""


class MalformedBundle(ValueError):
    """A malformed bundle. file: the file's suffix after the prefix of the bundle, such as ".index"."""

    def __init__(self, problem: str, file: str = ".index") -> None:
        super().__init__(problem)
        self.file = file
