"""Who says so? One module per kind of source; all of them speak `harch.carbon.signals.source.SignalSource`."""
