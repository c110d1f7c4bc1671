"""KV blocks and slots: allocation, prefix reuse and the forecast of memory in use."""
