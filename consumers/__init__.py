"""What owns state and may decide: the gate, the engine worker group, readers of tokens and results."""
