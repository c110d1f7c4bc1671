"""Text to token ids, and chat templates."""
