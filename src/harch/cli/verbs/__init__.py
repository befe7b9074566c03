"""One file per verb or small family of verbs; each is imported only when it is used."""
