"""The tracker as a callback of other libraries."""
