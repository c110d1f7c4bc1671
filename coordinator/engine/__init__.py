"""Runs requests: routing, the step loop, recovery. Reports outputs and processes none."""
