"""What differs between two attempts, and whether it can move bits."""
