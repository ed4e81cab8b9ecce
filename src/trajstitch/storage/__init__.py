"""Files: written whole or not at all, tensors by name, and run folders."""
