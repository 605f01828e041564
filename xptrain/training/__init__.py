"""The training loop: in what order things happen."""
