"""Connects Python programs to a mesh: requests, streamed answers, the mesh's state."""
