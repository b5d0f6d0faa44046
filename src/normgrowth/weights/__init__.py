"""What checkpoints say. numpy only: torch is imported by the formats that need it, when they need it."""
