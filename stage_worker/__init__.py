"""The worker: one process, one device, one part of a model."""
