"""Sentences: what results say in words, made from their typed fields; one file per kind of result."""
