"""What does a supply contract say? Its terms as values, their TOML form, the prices of a time and the bill of a use."""
