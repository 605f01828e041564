"""What callbacks and the parts of a model hold in Python attributes, told apart from how they were set up."""
