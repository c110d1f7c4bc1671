"""From sampled tokens to the text that a client reads."""
