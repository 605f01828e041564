"""Proofs by doing it again: a run is replayed beside its record, and compared with it bit by bit."""
