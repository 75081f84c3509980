"""A box for each rank: `panels` divides the room among them, `panel` draws one and has its least size."""
