"""The gRPC services: inference, operations, mesh membership."""
