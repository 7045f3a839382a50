"""Paged KV: a pool that counts blocks, and a manager that gives them to sequences."""
