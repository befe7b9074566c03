"""Which bytes does work bring and leave? Chunks, trees of files, their store, environments and images."""
