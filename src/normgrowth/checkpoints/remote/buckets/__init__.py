"""Checkpoints in S3 and Google Cloud buckets, through obstore."""
