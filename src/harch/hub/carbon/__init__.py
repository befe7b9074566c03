"""On what power does a hub run, what will it be, and what did its work use? Signals, forecasts, ledger of one hub."""
