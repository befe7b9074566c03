"""Where and when does work start, for the sake of its power? The plan's word, carried out by the job machine. Pure."""
