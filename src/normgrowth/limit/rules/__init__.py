"""Rules for the limits of operations: one file per kind, registered with `@rule`."""
