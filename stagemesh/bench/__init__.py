"""The load test of a running mesh, `stagemesh bench serve`: workload, statistics, reports."""
