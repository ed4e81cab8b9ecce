"""Algorithms that learn a policy from data: each a frozen config that `fit` trains, all of one shape.

problem(data)   the units the policy works in, and the samples that batches are drawn from
init(key, data) the networks of one seed; its `actor` is the policy
objectives()    what `fit` lowers

TD3 alone learns online, for the ladders: `init` and `update`.
"""
