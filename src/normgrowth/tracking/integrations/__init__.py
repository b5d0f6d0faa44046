"""The tracker as a callback for other libraries."""
