"""The built-in sets: ladders of policies, how they are trained, and how data sets are collected with them."""
