"""The one check of names that come from a file or a server before they become paths."""

from pathlib import PureWindowsPath


def stays_below(name: str) -> bool:
    """Whether a name is the path of a file within a folder, on any system.

    >>> [stays_below(name) for name in ("a/b.pt", "../b.pt", "/b.pt", "a//b.pt", "C:b.pt")]
    [True, False, False, False, False]
    """
    parts = name.replace("\\", "/").split("/")
    return {"", ".", ".."}.isdisjoint(parts) and not PureWindowsPath(name).drive and min(name) >= " "
