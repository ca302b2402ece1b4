"""``python -m adareg.cli``."""

from adareg.cli import app

app()
