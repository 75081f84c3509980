"""What runs beside the ranks, outside their processes: start a group, look after it, record it, end it."""
