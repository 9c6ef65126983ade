"""How other nodes see dirty names, and which node may create names in a directory."""
