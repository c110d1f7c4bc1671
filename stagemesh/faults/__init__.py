"""A TCP proxy with injected network faults, for tests of a mesh."""
