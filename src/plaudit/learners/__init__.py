"""What improves a policy."""
