"""HarchOS: AI work on GPUs that stand in several countries."""
