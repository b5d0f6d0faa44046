"""The integrity checks, one file per kind of finding."""
