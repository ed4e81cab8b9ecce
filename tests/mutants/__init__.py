"""Mutation testing: small faults are put into the core, and the nearest tests have to notice each."""
