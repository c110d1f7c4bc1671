"""The APIs that others call: gRPC and HTTP."""
