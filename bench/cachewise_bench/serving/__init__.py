"""What the predictor takes: a real one with an embedded Valkey, loaded over loopback."""
