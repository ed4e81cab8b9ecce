"""The one training loop, the buffer it draws from, and the networks."""
