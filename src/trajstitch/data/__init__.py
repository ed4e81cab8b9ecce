"""Trajectories, their spaces and environments, checks, and the transitions that models learn from."""
