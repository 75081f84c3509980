"""Dialogs in which an entry is chosen: columns, a metric, a process, a script, a signal; `picker` is their base."""
