"""Collects and exports metrics of stages, schedulers and replicas."""
