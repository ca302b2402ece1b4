"""The paper's experiments, runnable: the extra ``lab``."""
