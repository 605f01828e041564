"""How checkpoints are on disk: receipts, the ledger, policies, the run's lock, the store and its saver."""
