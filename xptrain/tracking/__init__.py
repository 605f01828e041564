"""What MLflow gets: the journal, its delivery, and the recorder process that delivers it."""
