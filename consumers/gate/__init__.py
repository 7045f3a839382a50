"""The gate: admits requests, puts those of a session in order, remembers where each session stands."""
