"""Requests while they run: routing, the step loop, recovery."""
