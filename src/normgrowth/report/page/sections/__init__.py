"""Results as sections of the HTML page."""
