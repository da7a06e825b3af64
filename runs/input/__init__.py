"""What a run is given: at its start, sealed until then, and while it goes on."""
