"""Play against the learner in a terminal: it makes offers, and learns what you say yes to."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from common.errors import UserError
from common.run import Run
from papers.neg_ucb.worlds import method_of, policy_of, task_of, worlds_of


def describe(env, bid: np.ndarray) -> str:
    """A bid in words, from the counterpart's side."""
    if hasattr(env, "domain"):
        return "; ".join(f"{issue.name}: {issue.values[v]}" for issue, v in zip(env.domain.issues, bid, strict=True))
    if hasattr(env, "counts"):
        names = ("book", "hat", "ball")
        return "you get " + ", ".join(
            f"{j} of {c} {name}{'s' if c != 1 else ''}" for j, c, name in zip(bid, env.counts, names, strict=True)
        )
    given, taken = bid[: env.n], bid[env.n :]
    return f"you get items {np.flatnonzero(given).tolist()}, you give {np.flatnonzero(taken).tolist()}"


def play(cfg: Any, run: Run) -> None:
    """Offers until you stop (q, or the end of the rounds). Your answers are kept in the run's table."""
    if not sys.stdin.isatty():
        raise UserError("play needs a terminal to hear your answers: run it in one, without a pipe")
    task, (seed,) = task_of(cfg, cfg.play.task), run.seeds([0])
    env = worlds_of(cfg, run, task)(seed)
    policy = policy_of("neg_ucb", method_of(cfg, "neg_ucb", task), task, env, seed)
    rows = converse(env, policy, cfg.play.rounds, input, print)
    run.table("play", rows)
    run.log(
        {"play.offers": len(rows), "play.acceptance": float(np.mean([row["answer"] for row in rows])) if rows else 0.0}
    )


def converse(env, policy, rounds: int, ask, say) -> list[dict]:
    """The conversation: ask(prompt) -> text, say(text). y accepts, n rejects, q ends."""
    say(
        f"You negotiate ({env.name}) with a learner that knows its own benefit and learns yours: y accepts, n rejects, q ends."
    )
    rows: list[dict] = []
    env.counterpart = 0  # one person: always the same counterpart
    for t in range(rounds):
        bid = policy.propose(env)
        x, u = env.features(bid[None])[0], float(env.utility(bid))
        mean, bonus = policy.model.ucb(x[None], 0)
        say(
            f"offer {t + 1}: {describe(env, bid)}   [worth {u:.2f} to it; it expects a yes at {np.clip(mean[0], 0, 1):.2f} +- {bonus[0]:.2f}]"
        )
        answer = ""
        while answer[:1] not in ("y", "n", "q"):
            try:
                answer = ask("accept? [y/n/q] ").strip().lower()
            except EOFError:
                answer = "q"
        if answer[0] == "q":
            break
        y = int(answer[0] == "y")
        policy.observe(env, bid, x, 0, u, y)
        rows.append({"offer": t + 1, "bid": describe(env, bid), "utility": u, "expected": float(mean[0]), "answer": y})
        env.over = True
        env.arrive()
        env.counterpart = 0
        env._forget()
    return rows
