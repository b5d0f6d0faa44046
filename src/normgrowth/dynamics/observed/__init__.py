"""What a trace shows without a model of the dynamics: growth budget, direction, uniformity; per interval."""
