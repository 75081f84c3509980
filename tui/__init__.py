"""What the person sees. Knows the wire and the run directory; never imports torch."""
