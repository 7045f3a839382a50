"""Answers held to a structure: which tokens may come next, for each sequence and each drafted token."""
