"""How clean will power be in the next 96 hours, and how sure is that? Past hours in, forecast with intervals out."""
