"""Collectives between the ranks of one stage, which share a host: agreement, all-reduce, gather.

`group.py` is the interface that model code uses; `group_factory.py` opens a group for an epoch.
"""
