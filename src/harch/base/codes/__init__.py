"""Every error code, by family. `harch.base.errors.REGISTRY` puts them together."""
