"""Layers that several task models share."""
