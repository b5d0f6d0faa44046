"""What a tracker sees of the forward passes: attention logits, outputs and the dtypes of the computation."""
