"""What is wrong with a bundle, for a caller who knows which file it is in."""


class MalformedBundle(ValueError):
    """file: the end of the file's name behind the prefix of the bundle, such as ".index"."""

    def __init__(self, problem: str, file: str = ".index") -> None:
        super().__init__(problem)
        self.file = file
