"""Experiments: a grid of cells that is measured piece by piece, and one small file per table or figure."""
