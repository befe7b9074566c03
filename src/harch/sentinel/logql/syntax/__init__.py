"""What does a LogQL query say? Text in, tree out, and back."""
