"""What must never be stored? Rules that take secrets out of logs and traces before anything is written."""
