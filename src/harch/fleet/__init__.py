"""What hardware is where? GPUs, NVLink islands, nodes, racks, cooling, power, hubs and the links between them."""
