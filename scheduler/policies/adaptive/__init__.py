"""The adaptive policy: plans cycles of microbatches from measured stage costs."""
