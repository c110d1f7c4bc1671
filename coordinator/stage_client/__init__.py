"""Calls to one worker, and the streams of one epoch."""
