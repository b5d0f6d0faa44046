"""Checkpoints on other machines, read by byte ranges.

discovery.py          lists the files of a web server or a bucket
remote_file.py        one checkpoint file, not opened; remote_checkpoint.py: opened, read by ranges
transport.py          the interface of a file store; web/, buckets/ and hub/ implement it
session.py            connections and credentials that the checkpoints of one series share
retry.py              which requests are repeated, and when
"""
