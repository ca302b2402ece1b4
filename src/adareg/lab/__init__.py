"""The paper's experiments, runnable: the extra ``adareg[lab]``."""
