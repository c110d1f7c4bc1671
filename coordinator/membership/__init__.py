"""The joined workers, their allocation to replicas and their fault scores."""
