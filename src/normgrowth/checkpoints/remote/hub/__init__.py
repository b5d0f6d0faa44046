"""Checkpoints on the Hugging Face hub: the revisions of a repository, and their files."""
