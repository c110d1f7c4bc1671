"""The decoder of all model families, independent of slots, steps and streams.

Start with `decoder.py`. Differences between families are data: `runtime/model_config/family.py`.
"""
