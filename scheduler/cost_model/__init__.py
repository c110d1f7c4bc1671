"""Estimates what a microbatch costs each stage, from device priors and measurements."""
