"""Which series are the same? Labels as columns of codes: compared, grouped, matched and merged."""
