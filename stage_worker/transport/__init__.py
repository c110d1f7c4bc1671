"""Frames between stages: codec, assembly, flow control by credits, sending."""
