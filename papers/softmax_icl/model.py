"""The paper's transformer: one layer, one head of softmax attention, only the merged key-query matrix Q trained.

    E = [[x_1 .. x_N  x_q], [y_1 .. y_N  0]]  in R^{(d+1) x (N+1)}
    f(E) = W^V M(E) softmax(M(W^K E)' W^Q E),   M(.) drops the last column: the query does not attend to itself
    W^V = [[0, 0], [0, nu]],  (W^K)' W^Q = [[Q, 0], [0, 0]],  nu = 1

There is no 1/sqrt(d) (it would slow time down by d), no residual, no MLP, no positional code. The prediction is f(E)'s last
entry, so y_hat = sum_i attn_i y_i with attn = softmax_i(x_i' Q x_q).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from papers.softmax_icl.data import Prompts, check_orthonormal
from papers.softmax_icl.laws import whole


def embed(x: Tensor, y: Tensor, x_q: Tensor, slot: Tensor | float = 0.0) -> Tensor:
    """E (B, d+1, N+1) from x (B, N, d), y (B, N), x_q (B, d). slot: what stands where the query's label would be."""
    columns = torch.cat([x, x_q[:, None]], dim=1)  # (B, N+1, d)
    last = torch.as_tensor(slot, dtype=y.dtype, device=y.device).expand(len(y))
    labels = torch.cat([y, last[:, None]], dim=1)  # (B, N+1)
    return torch.cat([columns, labels[..., None]], dim=2).mT


class SoftmaxICL(nn.Module):
    """Softmax attention for in-context regression.

    d: dimension of x; K: number of features, where there are finitely many (only checked: K <= d).
    trained_nu, residual, mask=False: ablations; the paper has none of them. float64, since (1 - Attn_k)^2 is the loss.

    >>> x = torch.eye(2, dtype=torch.float64)[None]; y = torch.tensor([[3.0, 5.0]], dtype=torch.float64)
    >>> SoftmaxICL(2).predict(x, y, x[:, 0])                # Q = 0: the mean of the labels
    tensor([4.], dtype=torch.float64, grad_fn=<SelectBackward0>)
    """

    def __init__(
        self, d: int, K: int | None = None, *, trained_nu: bool = False, residual: bool = False, mask: bool = True
    ):
        super().__init__()
        d, K = whole("d", d), None if K is None else whole("K", K)
        if d < 1:
            raise ValueError(f"d is {d}: it must be at least 1")
        if K is not None and not 1 <= K <= d:
            raise ValueError(f"K is {K} and d is {d}: orthonormal features need 1 <= K <= d")
        self.d, self.K, self.residual, self.mask = d, K, residual, mask
        self.Q = nn.Parameter(torch.zeros(d, d, dtype=torch.float64))
        self.nu = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=trained_nu)

    def forward(self, E: Tensor) -> Tensor:
        """f(E) whole, as it is written above. E (B, d+1, N+1) -> (B, d+1, N+1)."""
        return self._columns(E, E)

    def _columns(self, E: Tensor, queries: Tensor) -> Tensor:
        """The columns of f(E) that belong to the columns `queries` of E. (B, d+1, n) -> (B, d+1, n)."""
        seen = E[..., :-1] if self.mask else E  # M(E)
        scores = seen[:, : self.d].mT @ (self.Q @ queries[:, : self.d])  # M(W^K E)' W^Q E: (B, N, n)
        read = self.nu * (seen[:, self.d :] @ scores.softmax(dim=1))  # the last row of W^V M(E) softmax(.): (B, 1, n)
        out = torch.cat([torch.zeros_like(queries[:, : self.d]), read], dim=1)
        return out + queries if self.residual else out

    def predict(self, x: Tensor, y: Tensor, xq: Tensor, slot: Tensor | float = 0.0) -> Tensor:
        """y_hat, the (d+1, N+1) entry of f(E). x (B, N, d), y (B, N), xq (B, d), tensors or arrays of any type -> (B,) in the model's.

        Only the last column of f(E) is computed: nothing else is read.
        Raises ValueError where the shapes do not go together.
        """
        x, y, xq = self._tensors(x, y, xq)
        if x.ndim != 3 or x.shape[1] < 1 or x.shape[2] != self.d:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected (B, N, {self.d}) with N >= 1")
        if y.shape != x.shape[:2] or xq.shape != (len(x), self.d):
            raise ValueError(
                f"y has shape {tuple(y.shape)} and xq {tuple(xq.shape)}, expected {tuple(x.shape[:2])} and {(len(x), self.d)} to go with x"
            )
        E = embed(x, y, xq, slot)
        return self._columns(E, E[..., -1:])[:, -1, 0]

    def attention(self, x: Tensor, x_q: Tensor) -> Tensor:
        """attn_i, the weight of each example for the query. (B, N, d), (B, d) -> (B, N).

        Raises ValueError where the shapes do not go together.
        """
        x, x_q = self._tensors(x, x_q)
        if x.ndim != 3 or x.shape[1] < 1 or x.shape[2] != self.d or x_q.shape != (len(x), self.d):
            raise ValueError(
                f"x has shape {tuple(x.shape)} and x_q {tuple(x_q.shape)}, expected (B, N, {self.d}) with N >= 1 and (B, {self.d})"
            )
        return torch.einsum("bnd,de,be->bn", x, self.Q, x_q).softmax(dim=1)

    def _tensors(self, *arrays: Any) -> list[Tensor]:
        """Tensors or arrays of any type as tensors of the model's own type, where it is."""
        return [torch.as_tensor(array).to(self.Q) for array in arrays]

    def _features(self, V: Any) -> Tensor:
        """V (d, K) in the model's type, its columns orthonormal. Raises ValueError where it is no such matrix."""
        V = torch.as_tensor(V)
        if V.ndim != 2 or len(V) != self.d:
            raise ValueError(f"V has shape {tuple(V.shape)}, expected ({self.d}, K)")
        check_orthonormal(V, "V")
        return V.to(self.Q)

    def bilinear(self, V: Tensor) -> Tensor:
        """Qf = V' Q V: rows are key features, columns query features; A_k = Qf[k, k], B_{k,n} = Qf[n, k]. V (d, K) -> (K, K).

        Raises ValueError where V is not orthonormal, or not of this d.
        """
        V = self._features(V)
        return V.mT @ self.Q.detach() @ V

    def set_bilinear(self, Qf: Tensor, V: Tensor) -> SoftmaxICL:
        """Q = V Qf V', so that V' Q V = Qf and Q is 0 beyond the span of V. Qf (K, K), V (d, K). Returns self.

        Raises ValueError where V is not orthonormal, or the shapes do not go together.
        """
        V = self._features(V)
        (Qf,) = self._tensors(Qf)
        if Qf.shape != (V.shape[1], V.shape[1]):
            raise ValueError(
                f"Qf has shape {tuple(Qf.shape)} and V {tuple(V.shape)}, expected (K, K) and ({self.d}, K)"
            )
        with torch.no_grad():
            self.Q.copy_(V @ Qf @ V.mT)
        return self


def attention_mass(attn: Tensor, feat: Tensor, K: int) -> Tensor:
    """Attn_m = sum of attn_i over the examples with feature m. attn (B, N), feat (B, N) -> (B, K)."""
    return torch.zeros(len(attn), K, dtype=attn.dtype).scatter_add(1, feat, attn)


def loss_by_feature(predict: Callable[..., Tensor], prompts: Prompts, K: int) -> NDArray:
    """L_k, the mean loss of the prompts whose query has feature k. (K,); NaN where no query has it.

    In a mean over queries drawn from p rare ones vanish: give `prompts` with stratified queries; L is then p @ L_k.
    """
    with torch.no_grad():
        loss = squared_loss(predict(*prompts[:3]).to(prompts.y_q), prompts.y_q)
    sums = torch.zeros(K, dtype=loss.dtype).scatter_add(0, prompts.feat_q, loss)
    return (sums / torch.bincount(prompts.feat_q, minlength=K)).numpy()


def squared_loss(prediction: Tensor, y_q: Tensor) -> Tensor:
    """1/2 (y_hat - <w, x_q>)^2 of each prompt: the paper's loss before its mean. (B,), (B,) -> (B,)."""
    return 0.5 * (prediction - y_q) ** 2
