"""Episodes and labels on disk, and batches made of both."""
