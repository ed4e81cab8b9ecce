"""The one training loop, the buffer it draws from, networks, losses, and bounds of settings."""
