"""The Python client: requests, streamed updates, the mesh's state."""
