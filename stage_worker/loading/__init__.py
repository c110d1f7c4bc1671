"""Turns an assignment into a loaded stage."""
