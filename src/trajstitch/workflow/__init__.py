"""From a log to a policy in one call: check, plan, stitch, train, evaluate or estimate, choose, report."""
