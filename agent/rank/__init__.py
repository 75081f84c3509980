"""Inside one rank's process: sees the training step, never disturbs it."""
