"""The HTTP door, on the gRPC door's loop: the API that OpenAI's clients speak, probes, metrics."""
