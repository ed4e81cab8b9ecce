"""What we measured, one file an experiment: each measures into JSON and writes its page under docs/results from it."""
