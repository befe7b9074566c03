"""What do functions over ranges give? Kernels for floats, objects for histograms."""
