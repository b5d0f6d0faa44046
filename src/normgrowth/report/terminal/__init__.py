"""Results as tables and sentences in a terminal."""
