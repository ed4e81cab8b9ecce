"""Rollouts, scores, off-policy estimates and the simulator check."""
