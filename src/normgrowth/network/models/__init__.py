"""Models: loading them, the paper's encoders, and networks built by hand."""
