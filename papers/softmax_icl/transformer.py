"""Less idealised transformers on the same prompts: heads, factored W^K and W^Q, trained values, residual, LayerNorm and MLP, layers.

Tokens are the columns of the paper's E: (x_i, y_i), and (x_q, 0) for the query; keys and values are the N examples only. Nothing
is fixed but that reading: every matrix starts small and random and is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """One layer: H heads that read the N examples, added to the residual stream where `residual`, then an MLP where `mlp`."""

    def __init__(self, D: int, heads: int, residual: bool, mlp: bool, init: float, generator: torch.Generator):
        super().__init__()

        def normal(*shape: int, scale: float) -> nn.Parameter:
            return nn.Parameter(scale * torch.randn(*shape, generator=generator))

        self.residual = residual
        self.W_Q = normal(heads, D, D, scale=init * D**-0.5)  # (H, D_head, D), D_head = D
        self.W_K = normal(heads, D, D, scale=init * D**-0.5)
        self.W_V = normal(heads, D, D, scale=D**-0.5)
        self.W_O = normal(heads, D, D, scale=(D * heads) ** -0.5)  # output mixing
        self.norm_attn = nn.LayerNorm(D) if mlp else nn.Identity()
        self.norm_mlp = nn.LayerNorm(D) if mlp else nn.Identity()
        self.up = normal(4 * D, D, scale=D**-0.5) if mlp else None
        self.down = normal(D, 4 * D, scale=(4 * D) ** -0.5) if mlp else None

    def forward(self, h: Tensor, query_only: bool = False) -> Tensor:
        """h (B, N+1, D) -> (B, N+1, D), or its last token alone, (B, 1, D), where nothing else is read.

        softmax(z' W^K' W^Q z) weighs tokens before W^V is applied to their mean: keys and values are z itself.
        """
        z = self.norm_attn(h)
        seen = z[:, None, :-1].expand(-1, len(self.W_K), -1, -1)  # M(E), the same for every head: (B, H, N, D)
        if query_only:
            h, z = h[:, -1:], z[:, -1:]
        q = torch.einsum("bnf,hef,hed->bhnd", z, self.W_Q, self.W_K)
        read = F.scaled_dot_product_attention(q, seen, seen, scale=1.0)  # (B, H, N+1 or 1, D)
        out = torch.einsum("bhnd,hed,hoe->bno", read, self.W_V, self.W_O)
        h = h + out if self.residual else out
        if self.up is not None and self.down is not None:
            h = h + F.gelu(self.norm_mlp(h) @ self.up.mT) @ self.down.mT
        return h


class Transformer(nn.Module):
    """`layers` blocks and a linear readout of the query's token. float32.

    heads, residual, mlp (LayerNorm and MLP): as in `Block`. init: scale of W^K and W^Q at the start, small so that
    attention starts near uniform.
    """

    def __init__(self, d: int, heads: int = 1, layers: int = 1, residual: bool = False, mlp: bool = False, init: float = 0.1,
                 generator: torch.Generator | None = None):  # fmt: skip
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.d = d
        self.blocks = nn.ModuleList(Block(d + 1, heads, residual, mlp, init, generator) for _ in range(layers))
        self.readout = nn.Parameter(torch.randn(d + 1, generator=generator) * (d + 1) ** -0.5)

    def predict(self, x: Tensor, y: Tensor, x_q: Tensor) -> Tensor:
        """x (B, N, d), y (B, N), x_q (B, d) -> y_hat (B,), in x's type and place."""
        columns = torch.cat([x, x_q[:, None]], dim=1)
        labels = F.pad(y, (0, 1))  # the query's slot is 0
        h = torch.cat([columns, labels[..., None]], dim=2).to(self.readout)  # (B, N+1, D)
        *lower, last = self.blocks
        for block in lower:
            h = block(h)
        return (last(h, query_only=True)[:, 0] @ self.readout).to(x)

    @torch.no_grad()
    def heads(self, V: Tensor, layer: int = -1) -> tuple[Tensor, Tensor]:
        """What the heads of a layer do in the paper's terms: (Qf (H, K, K), gain (H,)).

        Qf_h[n, k] is the score of a key with feature n and no label for a query with feature k, as the layer's own norm shows them
        (without a norm: V' (W^K_h' W^Q_h) V on the part of x). gain_h = readout' W^O_h W^V_h e_y is what the head makes of a label on
        the direct way to the readout. What earlier layers add to a token is not in it.
        """
        block = self.blocks[layer]
        assert isinstance(block, Block)
        z = block.norm_attn(F.pad(V.mT.to(self.readout), (0, 1)))  # (K, D): one token a feature
        Qf = torch.einsum("nd,hed,hef,kf->hnk", z, block.W_K, block.W_Q, z)
        gain = torch.einsum("d,hde,he->h", self.readout, block.W_O, block.W_V[:, :, self.d])
        return Qf, gain


def gain_shares(gain: Tensor) -> Tensor:
    """What part each head has in the prediction: |gain_h| / sum |gain|. (H,) -> (H,)."""
    return gain.abs() / gain.abs().sum()
