"""Where and when is power clean? Every figure says what kind it is of and where it is from."""
