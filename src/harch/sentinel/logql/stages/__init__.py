"""What happens to lines on their way? Parsers, filters and formats, on pages of columns."""
