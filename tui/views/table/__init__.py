"""A line for each rank: `table` is the widget, `columns` its columns."""
