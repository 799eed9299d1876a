"""Which work goes into the next step."""
