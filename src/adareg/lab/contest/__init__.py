"""The contest on tables: estimators of scikit-learn's kind, each as its users run it."""

#: What users type, and a line for a list.
NAME = "tables"
WHAT = "estimators on small tables, every method as its users run it"
