"""What every room of HarchOS stands on: ids, units, clock, errors, config. Imports nothing of ours."""
