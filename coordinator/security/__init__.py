"""API keys, rate limits, authentication, and which addresses may be listened on."""
