"""Episodes on disk, labels beside them, and batches out of both."""
