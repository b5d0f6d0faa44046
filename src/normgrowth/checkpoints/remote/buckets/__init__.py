"""Checkpoints in S3, Google Cloud and Azure buckets, through obstore."""
