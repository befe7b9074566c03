"""`harch tour`: its stations (`stations`), the walk over them (`walk`), and what it touches (`edge`, `progress`)."""
