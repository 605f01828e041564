"""The commands of `xptrain`: each a thin call into the rooms below, and what it shows."""
