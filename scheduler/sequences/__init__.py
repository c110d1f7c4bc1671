"""Sequences and the queues that they wait in."""
