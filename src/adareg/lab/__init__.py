"""The lab: data sets, experiments and what they show (``adareg[lab]``)."""
