"""Membership of the mesh, from the worker's side: hello, heartbeats, leaving."""
