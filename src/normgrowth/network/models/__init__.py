"""Models: loading by name, the paper's encoders, and networks built by hand."""
