"""What is saved: train state, host state, and their digests."""
