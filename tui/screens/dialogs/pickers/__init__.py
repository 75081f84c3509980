"""Lists that one entry is chosen from: columns, a metric, a process, a script, a signal."""
