"""PyTorch's loaders as data, in an environment of their own: `make torch-tests`."""
