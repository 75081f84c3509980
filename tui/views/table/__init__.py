"""A line for each rank: `table` is the widget, `columns` its columns, `grouping` its lines by host."""
