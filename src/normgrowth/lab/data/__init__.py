"""Sentences as rows of ids, in batches without padding."""
