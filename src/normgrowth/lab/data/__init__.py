"""Corpora: sentences as rows of ids, in batches with little padding."""
