"""How does HarchOS listen? Every port of the product goes through here: limits on connections, sizes and time."""
