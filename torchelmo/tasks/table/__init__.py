"""Tables of experiments: task runs by row, column, share of the training data and seed."""
