"""Who carries a command out? One adapter per protocol, all behind `base.Sink`."""
