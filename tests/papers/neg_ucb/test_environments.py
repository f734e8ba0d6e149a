"""Worlds, bid oracles, regret, and the gymnasium interface."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import PassiveEnvChecker

from common import codec
from papers.neg_ucb import anac, data, environments, features, methods
from papers.neg_ucb.acceptance import NegUCB
from papers.neg_ucb.environments.cardinality import ItemMeans
from papers.neg_ucb.negotiation import (
    Optimistic,
    Oracle,
    RandomBid,
    Stochastic,
    Trace,
    negotiate,
    one_round,
    slope,
    summary,
)
from papers.neg_ucb.oracle import best_bid, random_argmax

WITH_TRUTH = [name for name in environments.NAMES if name != "casino_replay"]


def small(name, seed=0, **options):
    if name == "multi_issue":
        options.setdefault("domain", anac.generate([3, 2, 4], np.random.default_rng(0)))
    if name == "trading":
        options.setdefault("techs", 8)
    return environments.make(name, seed=seed, **options)


WAYS = ({}, {"proposals": 5}, {"proposals": 5, "counters": True})


@pytest.mark.parametrize("options", WAYS, ids=["one", "several", "counters"])
@pytest.mark.parametrize("name", environments.NAMES)
@pytest.mark.filterwarnings("error:.*WARN")
def test_gymnasium_accepts_the_environment_without_a_warning(name, options):
    check_env(small(name, **options), skip_render_check=True)
    made = gymnasium.make(f"neg_ucb/{name}-v0", seed=3, **options)
    assert any(isinstance(layer, PassiveEnvChecker) for layer in layers(made))  # registration keeps the checker on
    made.reset()
    assert made.unwrapped.name == name
    made.step(made.unwrapped.bids()[0])


def layers(env):
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def test_a_counter_bid_in_info_is_a_copy_and_of_this_step_alone():
    env = small("multi_issue", proposals=5, counters=True)
    env.reset(seed=0)
    seen = []
    for _ in range(200):
        before = env.context().copy()
        *_, over, _, info = env.step(env.bids()[env.accept_prob(env.bids()).argmin()])
        if over:
            assert (info["counter"] == -1).all()
            assert env.counter is None
            env.reset()
            continue
        assert np.array_equal(info["counter"], env.counter)
        context = env.context().copy()
        info["counter"][:] = 0
        assert np.array_equal(env.context(), context)
        seen.append(not np.array_equal(before, context))
    assert sum(seen) > 50


def test_a_counter_bid_is_the_best_for_its_maker_of_sixteen():
    """Against the draw done by hand, and against chance: a maker of random counter-bids would accept far fewer of them."""
    for seed in range(3):
        env = small("multi_issue", seed=seed, proposals=5, counters=True)
        chances, typical = [], []
        for _ in range(20):
            drawn = env.random_bids(16, np.random.default_rng(seed))
            counter = env._counter(np.random.default_rng(seed))
            q = env.accept_prob(drawn)
            assert float(env.accept_prob(counter)) == q.max()
            chances.append(q.max())
            typical.append(q.mean())
            env.over = True
            env.arrive()
        assert np.mean(chances) > 1.3 * np.mean(typical)


def test_the_proposer_has_the_first_profile_and_counterparts_the_second():
    """One issue, opposite tastes: what is best for us is worst for every counterpart."""
    issue = (anac.Issue("price", ("low", "middle", "high")),)
    sides = [anac.Profile(name, anac.LinearAdditive(np.array([table]))) for name, table in
             (("buyer", [1.0, 0.5, 0.0]), ("seller", [0.0, 0.5, 1.0]))]  # fmt: skip
    env = environments.make("multi_issue", domain=anac.Domain("d", issue, tuple(sides)))
    assert env.utility(env.bids()).tolist() == [1.0, 0.5, 0.0]
    for g in range(env.counterparts):
        env.counterpart = g
        assert (np.diff(env.their_utility(env.bids())) > 0).all()
        assert (np.diff(env.accept_prob(env.bids())) > 0).all()


@pytest.mark.parametrize("name", environments.NAMES)
def test_masks_name_every_value_that_some_valid_bid_has_and_no_other(name):
    env = small(name)
    for _ in range(5):
        _, info = env.reset()
        bids = env.bids()
        assert len(info["action_mask"]) == bids.shape[1]
        for i, mask in enumerate(info["action_mask"]):
            assert set(np.flatnonzero(mask)) == set(bids[:, i])
        assert env.action_space.contains(env.action_space.sample(mask=info["action_mask"]))
        env.over = True


def test_numbered_bids_are_all_valid_where_hardly_a_combination_is():
    env = small("trading")
    assert np.mean([env.is_valid(env.action_space.sample()) for _ in range(300)]) < 0.1
    listed, generator = environments.Listed(env), np.random.default_rng(0)
    _, info = listed.reset(seed=1)
    for _ in range(60):
        choices = np.flatnonzero(listed.action_masks())
        assert np.array_equal(choices, np.flatnonzero(info["action_mask"]))
        assert len(choices) == env.n_bids < listed.action_space.n
        *_, over, _, info = listed.step(generator.choice(choices))
        assert info["valid"]
        if over:
            _, info = listed.reset()
    *_, over, _, info = listed.step(env.n_bids)  # a number without a bid
    assert (over, info["valid"], info["regret"]) == (True, False, env.optimum())


def test_most_bids_is_never_exceeded_and_is_reached():
    for name in environments.NAMES:
        env, seen = small(name), 0
        for _ in range(200):
            seen = max(seen, env.n_bids)
            env.over = True
            env.arrive()
        assert 0.3 * env.most_bids() <= seen <= env.most_bids() or name == "trading"
        assert seen <= env.most_bids()
    with pytest.raises(ValueError, match="too many to number"):
        environments.Listed(environments.make("multi_issue", domain=anac.generate([10] * 7, np.random.default_rng(0))))


@pytest.mark.parametrize("name", WITH_TRUTH)
def test_features_utilities_and_probabilities_stay_in_their_ranges(name):
    env = small(name)
    for _ in range(20):
        bids = env.bids()
        x, u, q = env.features(bids), env.utility(bids), env.accept_prob(bids)
        assert x.shape == (len(bids), env.dim)
        assert np.linalg.norm(x, axis=1).max() <= env.bound + 1e-9
        assert u.min() >= 0
        assert u.max() <= 1
        assert q.min() >= 0
        assert q.max() <= 1
        assert float(env.utility(bids[0])) == pytest.approx(u[0])
        assert float(env.accept_prob(bids[0])) == pytest.approx(q[0])
        assert all(env.is_valid(bid) for bid in bids[:: max(len(bids) // 7, 1)])
        assert env.is_valid(env.random_bids(1, np.random.default_rng(0))[0])
        env.over = True
        env.reset()


def test_number_of_divisions_is_the_product_of_counts_plus_one():
    env = environments.make("allocation_linear", contexts=np.array([[[1, 4, 1], [4, 1, 2]]]))
    assert len(env.bids()) == 2 * 5 * 2
    assert len(np.unique(env.bids(), axis=0)) == 20
    assert float(env.utility(np.array([0, 4, 0]))) == pytest.approx(0.6)  # keeps the book and the ball: (4 + 2)/10


def test_one_hot_is_scaled_to_norm_one():
    env = small("multi_issue")
    assert np.allclose(np.linalg.norm(env.features(env.bids()), axis=1), 1)


def test_trades_give_what_is_owned_and_take_what_is_lacked():
    env = environments.make("trading", seed=1)
    bids = env.bids()
    assert bids[:, : env.n].sum(1).max() <= 3
    assert bids[:, env.n :].sum(1).max() <= 3
    assert (env.utility(bids) > 0).all()
    assert set(np.flatnonzero(bids[:, : env.n].any(0))) <= set(env.gives)
    assert set(np.flatnonzero(bids[:, env.n :].any(0))) <= set(env.takes)


def test_mood_rises_with_deals_and_falls_with_insults_only():
    env = environments.make("trading", seed=1)
    env.mood[:] = 0
    gain = env.gain(env.bids())
    insult, fair = env.bids()[gain.argmin()], env.bids()[gain.argmax()]
    assert gain.min() < 0 < gain.max()
    env._answered(fair, 0)
    assert env.mood.sum() == 0
    env._answered(insult, 0)
    assert env.mood[env.counterpart] == pytest.approx(-0.05)
    env._answered(fair, 1)
    assert env.mood[env.counterpart] == pytest.approx(0.0)


def test_two_policies_meet_the_same_people_in_the_same_order():
    met = []
    for policy in (RandomBid(np.random.default_rng(1)), Oracle(np.random.default_rng(2))):
        met.append(negotiate(small("allocation_linear", seed=5), policy, 60)["counterpart"])
    assert np.array_equal(*met)


@pytest.mark.parametrize("name", WITH_TRUTH)
def test_oracle_has_no_regret_and_nobody_has_less(name):
    assert negotiate(small(name), Oracle(np.random.default_rng(0)), 40)["regret"].max() == 0
    assert negotiate(small(name), RandomBid(np.random.default_rng(0)), 40)["regret"].min() >= 0


def test_random_regret_is_linear():
    trace = negotiate(small("allocation_linear"), RandomBid(np.random.default_rng(0)), 2000)
    assert summary(trace)["half_ratio"] == pytest.approx(1.0, abs=0.12)
    assert slope(np.cumsum(trace["regret"])) > 0.95
    assert slope(np.sqrt(np.arange(1, 1001))) == pytest.approx(0.5, abs=1e-6)


def test_a_negotiation_of_several_proposals_ends_with_yes_or_after_them():
    env = small("multi_issue", proposals=4, counters=True)
    seen = set()
    for episode in range(20):
        env.reset()
        for h in range(4):
            assert env.rejections == h
            assert env.context()[-1] == h / 4
            assert (
                env.features(env.bids())[0, env.encoding] == h / 4
            )  # the round number is in the context, or concession looks like noise
            q = env.accept_prob(env.bids())
            y = env.respond(env.bids()[q.argmin() if episode % 2 else q.argmax()])
            if env.over:
                break
            assert env.is_valid(env.counter)
        seen.add((y, h))
        with pytest.raises(ValueError, match="is over"):
            env.respond(env.bids()[0])
    assert {(1, 0), (0, 3)} <= seen


@pytest.mark.parametrize("name", ["multi_issue", "allocation_linear", "trading", "cardinality"])
def test_the_last_counter_bid_is_part_of_the_context(name):
    env = environments.make(name, seed=1, proposals=4, counters=True)
    plain = environments.make(name, seed=1, proposals=4)
    assert env.dim == plain.dim + env.encoding
    assert not env.features(env.bids())[:, -env.encoding :].any()  # nothing said yet
    bid = next(b for b in env.bids() if env.accept_prob(b) < 0.9)
    for _ in range(50):
        if not env.respond(bid if env.is_valid(bid) else env.bids()[0]):
            break
        env.reset()
    x = env.features(env.bids())
    assert x.shape == (env.n_bids, env.dim)
    assert np.linalg.norm(x, axis=1).max() <= env.bound + 1e-9
    said = env.features(env.counter[None])[0]
    assert np.array_equal(said[: env.encoding], said[-env.encoding :])
    assert (x[:, -env.encoding :] == said[-env.encoding :]).all()
    assert np.array_equal(env.context()[-env.encoding - 1 : -1], said[-env.encoding :])
    env.over = True
    env.reset()
    assert not env.features(env.bids())[:, -env.encoding :].any()  # another episode, another conversation


def test_sampled_contexts_cover_the_whole_of_a_negotiation_and_leave_it_where_it_was():
    from papers.neg_ucb import methods

    env = environments.make("multi_issue", proposals=5, counters=True)
    before = env.features(env.bids()[:3])
    x = methods.candidates(env, 0)
    assert len(np.unique(x[:, env.encoding])) > 2  # rejections so far
    assert x[:, -env.encoding :].any()
    assert np.array_equal(before, env.features(env.bids()[:3]))


def test_counterparts_concede_over_time():
    env = small("multi_issue", proposals=4)
    before = env.accept_prob(env.bids())
    env.rejections = 3
    assert (env.accept_prob(env.bids()) > before).all()


def test_invalid_action_reaches_nobody():
    env = small("trading")
    env.reset()
    _, reward, over, _, info = env.step(np.ones(2 * env.n, int))
    assert (reward, over, info["valid"]) == (0.0, True, False)
    with pytest.raises(ValueError, match="not valid"):
        env.reset()
        env.respond(np.ones(2 * env.n, int))


@pytest.mark.parametrize("name", ["allocation_linear", "trading", "multi_issue"])
@pytest.mark.parametrize("kind", ["ridge", "dqn", "neural_ucb", "tit_for_tat", "frequency", "exact"])
def test_saved_negotiation_goes_on_exactly(name, kind, tmp_path):
    task = {"m": 8, "length": 1.0, "hidden": 2, "every": 10, "search": {}}
    entry = (
        {"kind": kind, "map": "rff", "hidden": "task", "epsilon": 0.1, "counter_weight": 0.3}
        if kind == "ridge"
        else {"kind": kind}
    )

    def fresh(seed):
        env = small(name, seed=4, proposals=3, counters=True)
        return env, methods.make(entry, env, seed, task), Trace(120)

    env, policy, trace = fresh(0)
    for _ in range(70):
        one_round(env, policy, trace)
    codec.save(tmp_path / "state", [part.state_dict() for part in (env, policy, trace)])
    others = fresh(0)
    for part, state in zip(others, codec.load(tmp_path / "state"), strict=True):
        part.load_state_dict(state)
    for _ in range(50):
        one_round(env, policy, trace)
        one_round(*others)
    assert np.array_equal(trace.values, others[2].values)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="allocation_linear"):
        environments.make("auction")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("allocation_linear", {"contexts": np.zeros((2, 3))}, "contexts"),
        ("allocation_linear", {"counterparts": 0}, "counterparts"),
        ("trading", {"techs": 1}, "techs"),
        ("casino_replay", {"offers": []}, "offers"),
        ("cardinality", {"items": 1}, "items"),
    ],
)
def test_bad_options_are_refused_by_name(name, options, message):
    with pytest.raises(ValueError, match=message):
        environments.make(name, **options)


# ---- bid oracles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["multi_issue", "allocation_linear", "trading"])
def test_local_search_finds_nearly_the_best_and_never_better(name):
    for seed in range(5):
        env = small(name, seed=seed)

        def score(bids, env=env):
            return env.utility(bids) * env.accept_prob(bids)

        exact = best_bid(score, env, "enumerate")
        for method in ("local", "sample"):
            found = best_bid(score, env, method, generator=np.random.default_rng(seed))
            assert env.is_valid(found)
            ratio = score(found[None])[0] / score(env.bids())[exact]
            assert 0.9 < ratio <= 1 + 1e-12


def test_neighbours_differ_by_one_change_and_are_valid():
    env = small("multi_issue")
    bids = env.random_bids(3, np.random.default_rng(0))
    around, owner = env.neighbours(bids)
    assert len(around) == 3 * (2 + 1 + 3)
    assert ((around != bids[owner]).sum(1) == 1).all()
    assert (np.diff(owner) >= 0).all()
    trade = small("trading", seed=2)
    around, owner = trade.neighbours(trade.bids()[:4])
    assert all(trade.is_valid(bid) for bid in around)


def test_oracle_refuses_empty_sets_nan_scores_and_sets_too_large():
    env = small("allocation_linear")
    with pytest.raises(ValueError, match="is NaN"):
        best_bid(lambda bids: np.full(len(bids), np.nan), env)
    with pytest.raises(ValueError, match="choose enumerate, local or sample"):
        best_bid(lambda bids: np.zeros(len(bids)), env, "guess")
    env._bids = np.zeros((0, 3), int)
    with pytest.raises(ValueError, match="no valid bid"):
        best_bid(lambda bids: np.zeros(len(bids)), env)
    large = environments.make("multi_issue", domain=anac.generate([10] * 6, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="local or sample"):
        best_bid(lambda bids: np.zeros(len(bids)), large)
    assert large.is_valid(best_bid(large.utility, large, "local"))


def test_ties_are_broken_over_all_of_them():
    picks = {random_argmax(np.array([0.0, 1.0, 1.0, 1.0]), np.random.default_rng(seed)) for seed in range(40)}
    assert picks == {1, 2, 3}


# ---- policies --------------------------------------------------------------------------------------------------------


class Fixed:
    """A model that says what it is told: (mean, bonus) for every bid."""

    def __init__(self, mean, bonus):
        self.mean, self.bonus = np.array(mean, float), np.array(bonus, float)

    def ucb(self, x, g):
        return self.mean, self.bonus


class Bids(Stochastic):
    """Just enough of an environment: bids 0 .. n-1 with given utilities."""

    counterpart = 0

    def __init__(self, u):
        self.u, self.n_bids = np.array(u, float), len(u)

    def bids(self):
        return np.arange(self.n_bids)[:, None]

    def features(self, bids):
        return bids.astype(float)

    def utility(self, bids):
        return self.u[bids[:, 0]]


def test_optimism_is_in_the_acceptance_not_in_the_product():
    """u U: .9 x .3 = .27 beats .1 x 1 = .1; u mean + bonus would take the worthless, uncertain bid."""
    pick = Optimistic(Fixed([0.2, 0.1], [0.1, 0.9]), np.random.default_rng(0)).propose(Bids([0.9, 0.1]))
    assert pick[0] == 0


def test_negative_utilities_take_the_lower_bound():
    """Both bids cost: the one that is surely turned down is the better, however uncertain the other."""
    pick = Optimistic(Fixed([0.05, 0.5], [0.0, 0.5]), np.random.default_rng(0)).propose(Bids([-0.5, -0.4]))
    assert pick[0] == 1  # -.4 x (.5 - .5) = 0 against -.5 x .05


def test_learning_sees_answers_and_not_rewards():
    env = small("allocation_linear")
    seen = []

    class Spy(NegUCB):
        def update(self, x, g, y, weight=1.0):
            seen.append(y)
            super().update(x, g, y, weight)

    negotiate(env, Optimistic(Spy(features.Linear(env.dim, env.bound)), np.random.default_rng(0)), 50)
    assert set(seen) == {0, 1}


def test_neg_ucb_learns_what_a_shared_model_cannot():
    task = {"m": 24, "length": 0.0, "hidden": 2, "every": 10, "search": {}}
    regret = {}
    for name, hidden in (("neg", 2), ("shared", 0)):
        entry = {"kind": "ridge", "map": "linear", "hidden": hidden, "alpha": 0.3}
        envs = [small("allocation_linear", seed=seed) for seed in (0, 1, 2)]
        regret[name] = sum(negotiate(env, methods.make(entry, env, 0, task), 700)["regret"].sum() for env in envs)
    assert regret["neg"] < 0.75 * regret["shared"]


def test_mean_of_items_is_the_bid_feature():
    env = environments.make("cardinality", items=8)
    bid = np.array([[1, 0, 0, 1, 0, 0, 0, 0]])
    phi = ItemMeans(env)(env.features(bid))
    assert np.allclose(phi[0, :-1] * env.mean_bound * np.sqrt(2), (env.items[0] + env.items[3]) / 2)


# ---- data ------------------------------------------------------------------------------------------------------------


def test_example_lines_of_deal_or_no_deal():
    lines = (
        "1 0 4 2 1 2 YOU: i want 4 hats <eos> THEM: deal <eos> YOU: <selection> item0=0 item1=4 item2=0 <eos> reward=8 agree 1 4 4 1 1 2\n"
        "1 4 4 1 1 2 THEM: hats <eos> YOU: deal <eos> THEM: <selection> item0=1 item1=0 item2=1 <eos> reward=6 agree 1 0 4 2 1 2\n"
        "1 4 4 1 1 2 THEM: no <eos> YOU: <selection> <no_agreement> <no_agreement> <no_agreement> <eos> reward=no agreement 1 0 4 2 1 2\n"
    )
    first, second, none = data.deal_outcomes(lines)
    for line in (first, second):
        assert np.dot(line["values"], line["take"]) == line["reward"]
    assert none["reward"] is None
    assert none["status"] == "no agreement"
    with pytest.raises(ValueError, match="line 1"):
        data.deal_outcomes("nonsense")


def test_generated_contexts_are_of_the_real_kind():
    contexts = data.generated_contexts()
    counts, values = contexts[:, 0], contexts[:, 1]
    assert ((counts * values).sum(1) == 10).all()
    assert counts.sum(1).min() == 5
    assert counts.sum(1).max() == 7
    assert len(np.unique(counts, axis=0)) >= 28


def test_context_parser_refuses_what_does_not_sum_to_ten():
    good = "<input> 1 6 3 0 2 2 </input> <dialogue> hi </dialogue> <partner_input> 1 2 3 2 2 1 </partner_input>"
    assert data.deal_contexts(good).tolist() == [[[1, 3, 2], [6, 0, 2]]]
    with pytest.raises(ValueError, match="10"):
        data.deal_contexts(good.replace("1 6 3", "1 7 3"))
    with pytest.raises(ValueError, match="no line"):
        data.deal_contexts("empty")


def test_offers_with_counts_as_text_and_a_wrong_sum():
    line = (
        '{"dialogue_id": 1, "turn": 2, "proposer": "b", "responder": "a", "youget": {"Food": "1", "Water": "0", "Firewood": "3"}, '
        '"theyget": {"Food": "2", "Water": "3", "Firewood": "0"}, "response": "accept", "responder_points": 26, '
        '"responder_pref": {"Food": "Low", "Water": "High", "Firewood": "Medium"}}'
    )
    (offer,) = data.casino_offers(line)
    assert offer.takes == (2, 3, 0)
    assert offer.accepted
    assert offer.preference == (3, 5, 4)
    with pytest.raises(ValueError, match="line 1"):
        data.casino_offers(line.replace('"Food": "2"', '"Food": "1"'))


def test_a_responders_own_offer_becomes_context_of_the_next():
    offers = [
        data.Offer("d", 0, "a", "b", (1, 1, 1), False, (5, 4, 3), 12),
        data.Offer("d", 1, "b", "a", (2, 0, 1), True, (5, 4, 3), 13),
    ]
    env = environments.make("casino_replay", offers=offers)
    assert env.x[0, 7] == 0
    assert env.x[1, 7] == 1
    assert env.x[1, 6] == pytest.approx(1 / 3)
    assert env.x[1, 9] == pytest.approx((0 + 2 + 1) / 9)


@pytest.mark.realdata
def test_real_deal_lines_and_offers_keep_their_identities():
    from common.data.registry import locate, read_text

    lines = data.deal_outcomes(read_text(locate("dealornodeal_data")))
    assert len(lines) == 12_234
    assert sum(line["status"] == "no agreement" for line in lines) == 1_314
    assert len({tuple(line["counts"]) for line in lines}) == 28
    assert len(data.deal_contexts(read_text(locate("dealornodeal_val")))) == 1_087
    offers = data.casino_offers(read_text(locate("casino_offers")))
    assert len(offers) == 1_181
    assert sum(offer.accepted for offer in offers) == 1_005
    assert all(np.dot(offer.takes, offer.preference) == offer.points for offer in offers)
    assert 3 * sum(offers[0].preference) == 36
