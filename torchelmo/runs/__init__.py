"""The run engine that pre-training, fine-tuning and tasks share."""
