"""Load and convert models: model folders, and official files."""
