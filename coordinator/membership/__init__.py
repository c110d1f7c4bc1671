"""The workers that have joined, their allocation to replicas and their fault scores."""
