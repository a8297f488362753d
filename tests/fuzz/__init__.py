"""Seeded fuzzing of every kind of input that torchelmo reads."""
