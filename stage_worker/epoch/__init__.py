"""One epoch on one rank: receives steps, computes them in order, sends them on."""
