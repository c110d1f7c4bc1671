"""Runs one microbatch on this rank's layers."""
