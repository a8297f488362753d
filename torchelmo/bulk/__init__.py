"""Text collections to vectors on disk."""
