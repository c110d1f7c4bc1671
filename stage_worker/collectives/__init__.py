"""What the ranks of one stage do together: agree on a step, add up, gather.

`group.py` is the interface that the model is written against, `opening.py` makes a group for an
epoch. Ranks of a stage share a host, and nothing here reaches beyond it.
"""
