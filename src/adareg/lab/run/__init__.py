"""Running experiments: what is missing is planned, trained and recorded."""
