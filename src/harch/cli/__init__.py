"""How do people use HarchOS from a terminal? One file per verb; each is imported only when it is used."""
