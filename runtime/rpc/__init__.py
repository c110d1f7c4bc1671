"""gRPC channels and servers, with TLS, peer authorization, typed errors and call metrics."""
