"""How does HarchOS speak HTTP? What the hub's API and SENTINEL share, below both."""
