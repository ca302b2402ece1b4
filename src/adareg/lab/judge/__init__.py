"""Judging records: statistics, and the claims they decide."""
