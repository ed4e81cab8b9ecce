"""Algorithms that learn a policy: each a config with `init` and `update`."""
