"""Checkpoints on other machines, read by ranges.

discovery.py          finds them on web servers and in buckets; hub.py: revisions of a repository on the hub
remote_file.py        one of them, not opened; remote_checkpoint.py: opened; hub_download.py: fetched whole
transport.py          what a store of files can do: website.py (with http.py, connections.py) and object_store.py
session.py            what the checkpoints of one series share; bucket_access.py: keys, regions and endpoints of buckets
retry.py              what is tried again, and when
"""
