"""What is going on? Telemetry that is collected, kept, asked and acted on inside the perimeter."""
