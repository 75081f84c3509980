"""A line for each rank: `table` is the widget, `columns` what it can tell."""
