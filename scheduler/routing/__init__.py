"""Decisions above one replica: which replica takes a sequence, which stage takes which layers."""
