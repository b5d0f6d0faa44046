"""Check file names from an untrusted file or server before they are used as paths."""

from pathlib import PureWindowsPath


def stays_below(name: str) -> bool:
    """Whether a name is a relative path that stays within its folder, on any operating system.

    >>> [stays_below(name) for name in ("a/b.pt", "../b.pt", "/b.pt", "a//b.pt", "C:b.pt")]
    [True, False, False, False, False]
    """
    parts = name.replace("\\", "/").split("/")
    return {"", ".", ".."}.isdisjoint(parts) and not PureWindowsPath(name).drive and min(name) >= " "
