"""Trajectory stitching: neighbours, graph, jump tests, greedy passes, planning, and the pipeline."""
