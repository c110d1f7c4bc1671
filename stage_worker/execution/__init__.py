"""Runs one microbatch on this rank's share of the stage's layers."""
