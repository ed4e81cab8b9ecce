"""The models that stitching learns from the data: dynamics, inverse, reward, forward dynamics and value."""
