"""A virtual clock that drives the real scheduler against modelled stages and recorded traces.

It reads no wall clock and starts no process: equal inputs and seeds give equal results. `replay.py`
is the entry point; `model/pipeline.py` calculates when a step reaches each stage, and
`model/stage_times.py` how long it computes there.
"""
