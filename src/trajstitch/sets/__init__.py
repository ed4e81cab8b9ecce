"""The built-in benchmark sets: ladders of trained policies, and the data collected with them."""
