"""What happens to the work of a hub? The job machine: state, events in, effects out, and the runtime that drives it."""
