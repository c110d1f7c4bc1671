"""Shared by all processes: configuration, errors, checkpoints, gRPC, metrics, logs."""
