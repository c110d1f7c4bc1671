"""The HTTP API: OpenAI's routes, probes, metrics and the live page."""
