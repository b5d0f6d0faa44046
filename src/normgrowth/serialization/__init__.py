"""What the files of a result contain: checksums, JSON as a declared type, the columns of the records."""
