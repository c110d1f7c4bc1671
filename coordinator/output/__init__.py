"""Turns sampled tokens into the text that a client reads."""
