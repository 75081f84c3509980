"""All about one rank: `facts` as rows, `histories` in small."""
