"""Remote checkpoints, read by byte ranges.

discovery.py          finds checkpoints on a web server or in a bucket
remote_file.py        a checkpoint before it is opened; remote_checkpoint.py: an open one
transport.py          the interface of a file store; web/, buckets/ and hub/ implement it
session.py            connections and credentials, shared by the checkpoints of one series
retry.py              which requests are repeated, and when
"""
