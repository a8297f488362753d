"""② The bidirectional language model: characters → token vectors → layers."""
