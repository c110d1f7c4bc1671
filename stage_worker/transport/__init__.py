"""Transfers steps between stages: frame codec, assembly, sending, flow control by credits."""
