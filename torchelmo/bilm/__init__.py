"""② Token vectors and the layers of the bidirectional language model."""
