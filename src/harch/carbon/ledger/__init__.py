"""What energy and carbon did each job cost? Charges that add up to the meter, in a chain that shows tampering."""
