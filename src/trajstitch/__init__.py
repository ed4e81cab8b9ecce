"""Better offline-RL data from the data you have, by model-based trajectory stitching."""
