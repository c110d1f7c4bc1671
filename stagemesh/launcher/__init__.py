"""Starts a mesh's processes on this machine and restarts those that end."""
