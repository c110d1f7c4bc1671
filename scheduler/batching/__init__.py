"""Composes one microbatch: admission, prefill chunks, decodes and preemption."""
