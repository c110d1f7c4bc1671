"""What is counted: steps, stages, schedulers, requests."""
