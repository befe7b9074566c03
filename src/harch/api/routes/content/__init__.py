"""How do bytes come in and go out? Chunks, trees, files of work and artifacts; for people, and for node agents."""
