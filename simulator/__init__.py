"""A virtual clock that drives the real scheduler against modelled stages and recorded traces.

It reads no wall clock and starts no process: equal inputs and seeds give equal results. Start
reading at replay.py; pipeline.py says when a step is where, stage_times.py how long it computes.
"""
