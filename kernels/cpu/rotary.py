"""Factors of the rotary position embedding (Su et al., "RoFormer", 2021), in the half-split order."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Cosines and sines `[positions, head_dim]`, float32; the sines' first half is negated to match a rolled vector."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def build(cls, num_positions: int, head_dim: int, theta: float) -> "RotaryTable":
        """The table of all positions; pair (i, i + head_dim / 2) turns by position * theta^(-2i / head_dim)."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * (1.0 / theta**exponents)
        cos, sin = angles.cos(), angles.sin()
        return cls(cos=torch.cat((cos, cos), -1), sin=torch.cat((-sin, sin), -1))

    def factors(self, positions: torch.Tensor, num_heads: int, num_kv_heads: int, scale: float) -> "RotaryTable":
        """Factors `[rows, num_heads + 2 * num_kv_heads, head_dim]` for query, key and value heads in one product.

        Queries are scaled here, which saves a pass over the scores; values are not turned: their factors are 1 and 0.
        """
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        counts = (num_heads, num_kv_heads, num_kv_heads)
        parts = ((cos * scale, sin * scale), (cos, sin), (torch.ones_like(cos), torch.zeros_like(sin)))
        expanded = [(c.expand(-1, n, -1), s.expand(-1, n, -1)) for n, (c, s) in zip(counts, parts, strict=True)]
        return RotaryTable(cos=torch.cat([c for c, _ in expanded], 1), sin=torch.cat([s for _, s in expanded], 1))
