"""Finds, downloads, converts and verifies model files; reads headers and never whole weights."""
