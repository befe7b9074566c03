"""One file per verb or small family of verbs, in folders as `harch --help` lists them; each is imported when used."""
