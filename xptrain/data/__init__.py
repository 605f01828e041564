"""Data sources: which batch comes next, as a function of (seed, fit, epoch, batch)."""
