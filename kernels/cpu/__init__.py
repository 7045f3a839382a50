"""The CPU path in plain torch, built so that a row's numbers depend on nothing but that row."""
