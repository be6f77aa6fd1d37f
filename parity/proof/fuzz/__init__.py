"""Generated requests of all kinds, beside good ones, on real engines: `make fuzz`."""
