"""Why two runs diverge."""
