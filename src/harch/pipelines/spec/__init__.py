"""What is this pipeline, may it be, and where? Its file, its mistakes, the proof of its residency, its deployment."""
