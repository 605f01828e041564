"""What is recorded about my machine, my code and my data, and how exact that makes a run."""
