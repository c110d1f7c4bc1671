"""What every process needs: configuration, errors, checkpoints, gRPC plumbing, metrics, logs."""
