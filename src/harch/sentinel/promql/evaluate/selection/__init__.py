"""Which samples does a query mean? From selectors and subqueries to values at steps and windows of samples."""
