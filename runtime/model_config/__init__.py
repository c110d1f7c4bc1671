"""Reads config.json: a model's family, dimensions, layers, RoPE and its shares per rank."""
