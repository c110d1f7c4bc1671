"""Turns logits into sampled tokens and log-probabilities."""
