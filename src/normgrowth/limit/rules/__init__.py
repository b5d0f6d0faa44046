"""What operations become in the limit: one file for each kind, registered with `@rule`."""
