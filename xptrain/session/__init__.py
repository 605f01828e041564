"""A run: opens, attaches and closes everything below it."""
