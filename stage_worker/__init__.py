"""The worker: one process that runs one rank of a stage on one device."""
