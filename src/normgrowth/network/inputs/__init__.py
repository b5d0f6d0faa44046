"""The inputs of measurements: sentences, tokens, batches."""
