"""One epoch: receives steps, computes them in order, sends them on."""
