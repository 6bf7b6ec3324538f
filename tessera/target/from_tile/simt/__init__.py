"""The GPU lowering: a Tile kernel as the program of one thread."""
