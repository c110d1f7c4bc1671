"""The declarations of all Prometheus metrics, and the server that exposes them."""
