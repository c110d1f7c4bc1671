"""The native decoder of all model families, free of slots, steps and streams.

`decoder.py` is the place to start.
What families differ in is data: `runtime/model_config/family.py`.
"""
