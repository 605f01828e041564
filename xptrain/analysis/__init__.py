"""Looks back on runs: lists, histories and comparisons, read from local files; nothing recorded is run."""
