"""One file for each format. Nothing in a checkpoint is ever run."""
