"""The maths, on tensors only: no modules, no files, no printing."""
