"""The built-in sets: ladders of policies, how they are trained, and how sets are collected from them."""
