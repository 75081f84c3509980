"""What stands around the views: header, events, log, key bar."""
