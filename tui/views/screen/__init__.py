"""Around the views: header, events, log, key bar."""
