"""The widgets: each one draws a part of a `Frame`, and only what changed in it."""
