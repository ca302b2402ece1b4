"""Training networks: one by one and many at once, by any method of the comparison."""
