"""Records as one page: verdicts, every figure and table of the paper, cost, how to run it again."""

from adareg.lab.report.page import build, figure, write

__all__ = ["build", "figure", "write"]
