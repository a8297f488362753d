"""What every training run needs."""
