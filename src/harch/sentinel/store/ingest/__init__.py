"""What did a sender write? Remote-write bodies are walked by kernels that trust no byte of them."""
