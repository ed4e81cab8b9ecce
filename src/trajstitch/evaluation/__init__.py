"""Evaluation of policies and of stitched data: rollouts, scores, off-policy estimates and the simulator check."""
