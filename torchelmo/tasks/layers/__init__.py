"""The parts that task models are built from."""
