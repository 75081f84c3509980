"""The screens: each one shows a `Frame` and turns keys into requests to the `Source`."""
