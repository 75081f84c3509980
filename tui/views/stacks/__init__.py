"""Where the ranks stand: their stacks, merged and folded."""
