"""The worker's membership of the mesh: hello, heartbeats, leaving."""
