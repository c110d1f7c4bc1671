"""The native decoder: layers of the Llama family, free of slots, steps and streams.

`decoder.py` is the place to start. Later families are variations of the layers here.
"""
