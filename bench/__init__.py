"""Measurements: ratios between two ways of doing the same work, taken side by side in one run."""
