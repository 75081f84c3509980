"""A box for each rank: `panels` is the widget, `panel` draws one."""
