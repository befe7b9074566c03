"""Verbs that teach: the tour, the doctor, error codes, schemas, completion."""
