"""What a network is measured on: sentences, tokens, batches."""
