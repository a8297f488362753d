"""Weights in the files that exist: ours, the official ones."""
