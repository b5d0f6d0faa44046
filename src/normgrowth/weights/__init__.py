"""What series of checkpoints say: traces, lint, growth laws, dynamics. numpy only."""
