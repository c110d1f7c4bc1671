"""From a validated request to queued sequences."""
