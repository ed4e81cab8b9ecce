"""Planning with capacity, slow and obvious: from a log and the weights of models to the rebuilt trajectories.

It is what the presets `default` and `quick` do after fitting their models: neighbours, candidates, the precedent and
consistency tests, rewards, the plan, the walks and their acceptance. It takes nothing from the code that it tests but
the data and the networks' weights, and computes one state, pair and trajectory after the other, in double precision.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plain
from trajstitch.data.trajectories import Trajectories

GOES_ON, TERMINATES, BREAKS_OFF = "goes on", "terminates", "breaks off"


@dataclass
class Options:
    """What can be chosen; the names are those of the presets."""

    k: int = 4
    precedent: float | None = 1.0
    consistency: float | None = 0.2
    discount: float = 0.99
    pessimism: float = 1.0
    predicted_rewards: bool = True
    reward_range: bool = True
    max_visits: float = 0.025
    parts: int = 10
    doubt: float | None = None
    threshold: float = 0.1
    max_jumps: int | None = None
    horizon: int | None = None


@dataclass
class Step:
    source: int
    target: int
    reward: float
    jump: bool = False
    value_gain: float = math.nan


@dataclass
class Walk:
    number: int
    """Of the trajectory that is walked again."""
    at: int
    steps: list[Step] = field(default_factory=list)
    furthest: dict[int, int] = field(default_factory=dict)
    """By episode, the node of it that the walk has come to."""
    terminated: bool = False
    truncated: bool = True

    @property
    def visited(self) -> set[int]:
        return {self.steps[0].source, *(step.target for step in self.steps)} if self.steps else {self.at}


@dataclass
class Trajectory:
    start: int
    steps: list[Step]
    terminated: bool
    truncated: bool

    @property
    def nodes(self) -> list[int]:
        return [self.start, *(step.target for step in self.steps)]


def members_of(models: Any) -> list[Any]:
    """The models that are stacked along a leading axis, with NumPy's arrays."""
    count = len(jax.tree.leaves(models)[0])
    return [jax.tree.map(lambda leaf, at=at: plain.array(leaf[at]), models) for at in range(count)]


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which computes each result once."""

    def remembering(self: Any, *given: Any, **named: Any) -> Any:
        known = self.__dict__.setdefault(f"_{method.__name__}", {})
        key = (*given, *named.values())
        if key not in known:
            known[key] = method(self, *given, **named)
        return known[key]

    return remembering


@dataclass(eq=False)
class PlanningOracle:
    data: Trajectories
    models: Any
    options: Options
    context: list[int] | None = None

    def __post_init__(self) -> None:
        data = self.data
        self.inverse = jax.tree.map(plain.array, self.models.inverse)
        self.forward = members_of(self.models.tests["consistency"].members)
        self.reward = members_of(self.models.reward)
        self.nodes = range(len(data.observations))
        self.state = data.observations.astype(np.float64)
        self.episode, self.last, self.terminal = [], [], []
        self.logged_reward: dict[int, float] = {}
        for number, episode in enumerate(data):
            length = len(episode.rewards)
            for step in range(length):
                self.logged_reward[len(self.episode) + step] = float(episode.rewards[step])
            ends = bool(data.episode_terminated[number]) and length > 0
            self.episode += [number] * (length + 1)
            self.last += [False] * length + [True]
            self.terminal += [False] * length + [ends]
        mean, std = self.state.mean(0), self.state.std(0)
        self.spread = np.where(std > 1e-6 * (1 + abs(mean)), std, 1)
        self.near = [self.neighbours(node) for node in self.nodes]
        self.cut = 0
        """Walks that ended before a reward that they might miss."""
        self.steps = [node for node in self.nodes if not self.last[node]]

    # The graph

    def neighbours(self, node: int) -> list[int]:
        """The k nearest states of other episodes in the same context, between standardised states."""
        places = self.places
        others = [
            (float(((places[node] - places[other]) ** 2).sum()), other)
            for other in self.nodes
            if self.episode[other] != self.episode[node] and self.same_context(node, other)
        ]
        return [other for _, other in sorted(others)[: self.options.k]]

    @cached_property
    def places(self) -> np.ndarray:
        """Standardised states, rounded as the device rounds: which of two equal distances is less hangs on it."""
        mean, std = (jnp.asarray(part, jnp.float32) for part in (self.state.mean(0), self.spread))
        return plain.array((jnp.asarray(self.state, jnp.float32) - mean) / std)

    def same_context(self, one: int, other: int) -> bool:
        return self.context is None or self.context[one] == self.context[other]

    def candidates(self, node: int) -> list[int]:
        """The paper's Figure 5; where a log breaks off, the states that follow similar ones."""
        found = {near + 1 for near in self.near[node] if not self.last[near]}
        if not self.last[node]:
            found |= set(self.near[node + 1])
        return sorted(found)

    @remembered
    def distance(self, one: int, other: int) -> float:
        return float(np.linalg.norm((self.state[one] - self.state[other]) / self.spread))

    @remembered
    def precedent(self, source: int, target: int, *, own: bool) -> float:
        """How near the nearest logged step does the same, over the length; NaN for a jump of no length."""
        length = self.distance(source, target)
        if length == 0:
            return math.nan
        similar = [near for near in self.near[source][:32] if not self.last[near]]
        if own and not self.last[source]:
            similar.append(source)
        apart = [max(self.distance(step, source), self.distance(step + 1, target)) for step in similar]
        return min(apart, default=math.inf) / length

    @cached_property
    def near_enough(self) -> float:
        """A fifth, or as near as one in ten logged steps has a precedent."""
        found = [self.precedent(node, node + 1, own=False) for node in self.steps]
        return max(0.2, float(np.quantile([apart for apart in found if not math.isnan(apart)], 0.1)))

    @remembered
    def action(self, source: int, target: int) -> np.ndarray:
        """The most plausible action of the inverse model."""
        model = self.inverse
        latent = np.zeros(2 * self.data.action_size)
        seen = np.concatenate(
            (
                plain.standardised(model.scale, self.state[source]),
                plain.standardised(model.change, self.state[target] - self.state[source]),
                latent,
            )
        )
        low, high = plain.array(model.low), plain.array(model.high)
        return low + (high - low) * (np.tanh(plain.network(model.decoder.layers, seen[None])[0]) + 1) / 2

    def led_to(self, source: int, action: np.ndarray) -> list[tuple[np.ndarray, float]]:
        """The change and the reward that each forward model predicts."""
        return [self.predicted(model, self.state[source], action) for model in self.forward]

    def predicted(self, model: Any, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, float]:
        """The change and the reward that a forward model predicts for any state."""
        seen = (plain.standardised(model.observation, state), plain.standardised(model.action, action))
        out = plain.network(model.network.layers, np.concatenate(seen)[None])[0]
        return plain.undone(model.change, out[:-1]), float(plain.undone(model.reward, out[-1:])[0])

    def length(self, source: int, target: int) -> float:
        """Of a step, in the columns that the forward models explain."""
        change = (self.state[target] - self.state[source]) / self.forward[0].observation.std
        return math.sqrt((plain.array(self.models.tests["consistency"].weight) * change**2).sum())

    def error(self, source: int, target: int, action: np.ndarray) -> float:
        """The distance by which the worst forward model says that the action misses the target."""
        forward = self.models.tests["consistency"]
        std = self.forward[0].observation.std
        worst = 0.0
        for change, _ in self.led_to(source, action):
            miss = (change - (self.state[target] - self.state[source])) / std
            worst = max(worst, float((plain.array(forward.weight) * miss**2).sum()))
        logged_next = target if self.last[source] else source + 1
        course = (self.state[target] - self.state[logged_next]) / std
        return math.sqrt(worst + float((plain.array(forward.exogenous) * course**2).sum()))

    @cached_property
    def error_nearby(self) -> list[float]:
        """At each node, the largest error of the steps logged there and at its neighbours."""
        own = [
            0.0 if self.last[node] else self.error(node, node + 1, plain.array(self.logged_action(node)))
            for node in self.nodes
        ]
        return [max(own[other] for other in (node, *self.near[node])) for node in self.nodes]

    def logged_action(self, node: int) -> np.ndarray:
        return self.data.actions[self.steps.index(node)]

    @cached_property
    def usual_nearby(self) -> float:
        ratios = [
            self.error_nearby[node] / self.length(node, node + 1)
            for node in self.steps
            if self.length(node, node + 1) > 0
        ]
        return float(np.median(ratios))

    @remembered
    def consistency(self, source: int, target: int) -> float:
        """The error over the length, beyond what is usual; or that of the logged steps nearby, if it is larger."""
        length = max(self.length(source, target), 1e-6)
        usual = float(self.models.tests["consistency"].usual)
        jump = (self.error(source, target, self.action(source, target)) / length) ** 2 - usual**2
        nearby = (self.error_nearby[source] / length) ** 2 - self.usual_nearby**2
        return math.sqrt(max(jump, nearby, 0))

    @cached_property
    def jumps(self) -> dict[int, list[int]]:
        """By source, the targets of the jumps that pass the tests."""
        found: dict[int, list[int]] = {}
        options = self.options
        for source in self.nodes:
            if self.terminal[source]:
                continue
            found[source] = []
            for target in self.candidates(source):
                nearest = self.precedent(source, target, own=True) / self.near_enough
                if options.precedent is not None and not nearest <= options.precedent:
                    continue
                if options.consistency is not None and not self.consistency(source, target) <= options.consistency:
                    continue
                found[source].append(target)
        return found

    # Rewards

    def predicted_reward(self, number: int, source: int, target: int, action: np.ndarray) -> float:
        """The reward that a member of the reward model predicts; it sees whether the step terminates."""
        model = self.reward[number]
        seen = np.concatenate(
            (
                plain.standardised(model.observation, self.state[source]),
                plain.standardised(model.action, action),
                plain.standardised(model.change, self.state[target] - self.state[source]),
                [float(self.terminal[target])],
            )
        )
        return float(plain.undone(model.reward, plain.network(model.generator.layers, seen[None])[0])[0])

    @remembered
    def by_member(self, source: int, target: int) -> list[float]:
        action = self.action(source, target)
        return [self.predicted_reward(number, source, target, action) for number in range(len(self.reward))]

    @remembered
    def lowest_reward(self, source: int, target: int) -> float:
        """The lowest that any reward or forward model predicts."""
        forward = [reward for _, reward in self.led_to(source, self.action(source, target))]
        return min(self.by_member(source, target) + forward)

    @cached_property
    def usual_reward(self) -> float | None:
        """The reward that at least nine in ten steps have."""
        value, count = Counter(self.logged_reward.values()).most_common(1)[0]
        return value if count >= 0.9 * len(self.logged_reward) else None

    def end(self, target: int) -> str:
        if self.terminal[target]:
            return TERMINATES
        return BREAKS_OFF if self.last[target] else GOES_ON

    def within(self, source: int, target: int, reward: float) -> float:
        """The reward within those of similar logged steps that end as this one does."""
        if not self.options.reward_range:
            return reward
        similar = [node for node in (source, *self.near[source]) if not self.last[node]]
        paid = [self.logged_reward[node] for node in similar if self.end(node + 1) == self.end(target)]
        if target - 1 in self.logged_reward:
            paid.append(self.logged_reward[target - 1])
        paid = paid or [self.logged_reward.get(source, 0.0)]
        return min(paid) if self.usual_reward is not None else min(max(reward, min(paid)), max(paid))

    @cached_property
    def step_reward(self) -> dict[int, float]:
        """What the plan counts each logged step with."""
        if not self.options.predicted_rewards or self.usual_reward is not None:
            return dict(self.logged_reward)
        random, found = np.random.default_rng(0), {}
        by_step = random.permutation(len(self.steps)) % 2 if len(self.data) < 10 else None
        by_episode = random.permutation(len(self.data)) % 2
        for number, node in enumerate(self.steps):
            half = by_episode[self.episode[node]] if by_step is None else by_step[number]
            unseen = 1 - int(half)
            action = plain.array(self.logged_action(node))
            found[node] = self.within(node, node + 1, self.predicted_reward(unseen, node, node + 1, action))
        return found

    @cached_property
    def jump_gain(self) -> dict[tuple[int, int], float]:
        """Each jump's reward less its price."""
        price, found = self.options.pessimism * self.slope, {}
        for source, targets in self.jumps.items():
            for target in targets:
                reward = self.lowest_reward(source, target)
                if self.options.predicted_rewards:
                    reward = self.within(source, target, reward)
                found[source, target] = reward - price * self.error(source, target, self.action(source, target))
        return found

    @cached_property
    def slope(self) -> float:
        """How much discounted returns differ between neighbours, over their distance."""
        discount = self.options.discount
        usual = float(np.mean([self.step_reward[node] for node in self.steps])) / (1 - discount)
        returns: dict[int, float] = {}
        following = 0.0
        for node in reversed(self.nodes):
            if self.last[node]:
                following = 0.0 if self.terminal[node] else usual
            else:
                returns[node] = following = self.step_reward[node] + discount * following
        differences = distances = 0.0
        for node in self.steps:
            for other in self.near[node]:
                if not self.last[other]:
                    differences += abs(returns[node] - returns[other])
                    distances += self.distance(node, other)
        return differences / distances if distances else 0.0

    @cached_property
    def stops(self) -> set[int]:
        """The nodes after a sparse reward, if several episodes are paid one and none is paid two."""
        if self.usual_reward is None or not (self.options.predicted_rewards and self.options.reward_range):
            return set()
        special = [node for node, reward in self.logged_reward.items() if reward != self.usual_reward]
        each = Counter(self.episode[node] for node in special)
        return {node + 1 for node in special} if len(special) > 1 and max(each.values()) == 1 else set()

    # The plan

    @cached_property
    def scale(self) -> float:
        sizes = [abs(size) for size in (*self.step_reward.values(), *self.jump_gain.values())]
        return max(*sizes, 1e-12)

    def values(self, full: set[int], used_up: set[tuple[int, int]]) -> list[float]:
        """V of every node by value iteration; to enter a full node or to take a used-up jump costs a toll."""
        found = [0.0] * len(self.nodes)
        for _ in range(10_000):
            before = list(found)
            for node in self.nodes:
                if self.terminal[node] or node in self.stops:
                    found[node] = 0.0
                elif self.last[node]:
                    near = [other for other in self.near[node] if self.goes_on(other)]
                    near = near or [other for other in self.nodes if self.goes_on(other)]
                    found[node] = sum(before[other] for other in near) / len(near) if near else 0.0
                else:
                    found[node] = max(self.action_values(node, before, full, used_up).values())
            if max(abs(new - old) for new, old in zip(found, before, strict=True)) < 1e-11 * self.scale:
                break
        return found

    def goes_on(self, node: int) -> bool:
        return not self.last[node] and node not in self.stops

    def action_values(
        self, node: int, values: list[float], full: set[int], used_up: set[tuple[int, int]]
    ) -> dict[int, float]:
        """The value of going on to each state that an action at the node leads to: the logged one, then jumps."""
        toll = 10 * self.scale / (1 - self.options.discount)
        found = {}
        if not self.last[node]:
            found[node + 1] = self.step_reward[node] - toll * (node + 1 in full)
        for target in self.jumps.get(node, []):
            found[target] = self.jump_gain[node, target] - toll * (target in full or (node, target) in used_up)
        return {target: reward + self.options.discount * values[target] for target, reward in found.items()}

    # The walks

    def preferences(self, node: int, values: list[float], full: set[int], used_up: set[tuple[int, int]]) -> list[int]:
        """Where the actions at a node lead, the best first; the logged step wins ties."""
        tie = 1e-7 * self.scale / (1 - self.options.discount)
        found = self.action_values(node, values, full, used_up)
        return sorted(found, key=lambda target: -found[target] - tie * (target == node + 1 and not self.last[node]))

    def walks(
        self,
        walkers: list[int],
        values: list[float],
        visits: Counter[int],
        uses: Counter[tuple[int, int]],
        most: tuple[int, int],
        horizon: int,
    ) -> list[Walk]:
        """Walk trajectories again, step by step together."""
        full = {node for node in self.nodes if visits[node] >= most[0]}
        used_up = {jump for jump in self.jump_gain if uses[jump] >= most[1]}
        room = {node: most[0] - visits[node] for node in self.nodes}
        left = {jump: most[1] - uses[jump] for jump in self.jump_gain}
        every = [Walk(number, int(self.data.first_rows[number])) for number in walkers]
        walking = [walk for walk in every if not self.last[walk.at]]
        for _ in range(horizon):
            wanted = {id(walk): self.preferences(walk.at, values, full, used_up) for walk in walking}
            going: dict[int, tuple[int, bool] | None] = {}
            for walk in walking:
                walk.furthest[self.episode[walk.at]] = walk.at
            asking = [walk for walk in walking if walk.at not in self.stops]
            for walk in walking:
                if walk.at in self.stops:
                    going[id(walk)] = None
            while asking:
                # Each asks for its best action that is left; those who ask for the same are served in order. A place
                # in the queue for a state is kept by a walk that then finds its jump used up.
                queue: Counter[int] = Counter()
                making: Counter[tuple[int, int]] = Counter()
                taken: Counter[int] = Counter()
                used: Counter[tuple[int, int]] = Counter()
                remaining = []
                for walk in asking:
                    if not wanted[id(walk)]:
                        going[id(walk)] = None if self.last[walk.at] else (walk.at + 1, False)
                        continue
                    target = wanted[id(walk)].pop(0)
                    jump = (walk.at, target) if self.last[walk.at] or target != walk.at + 1 else None
                    foreign = self.episode[target] != walk.number
                    free = target > walk.furthest.get(self.episode[target], -1)
                    if free and foreign:
                        free = queue[target] < room[target]
                        queue[target] += 1
                    if free and jump:
                        free = making[jump] < left[jump]
                        making[jump] += 1
                    if not free:
                        remaining.append(walk)
                        continue
                    taken[target] += foreign
                    if jump:
                        used[jump] += 1
                    going[id(walk)] = (target, jump is not None)
                for target, count in taken.items():
                    room[target] -= count
                for jump, count in used.items():
                    left[jump] -= count
                asking = remaining
            onward = []
            for walk in walking:
                where = going[id(walk)]
                if where is None or where[0] in walk.visited:
                    continue
                target, jumps = where
                walk.steps.append(self.step(walk.at, target, jumps))
                walk.at = target
                if self.terminal[target]:
                    walk.terminated, walk.truncated = True, False
                    if not jumps:
                        walk.truncated = bool(self.data.episode_truncated[self.episode[target]])
                    continue
                onward.append(walk)
            walking = onward
        return every

    def step(self, source: int, target: int, jumps: bool) -> Step:
        if not jumps:
            return Step(source, target, self.logged_reward[source])
        reward = float(np.mean(self.by_member(source, target)))
        if self.options.predicted_rewards:
            reward = self.within(source, target, reward)
        instead = source if self.last[source] else source + 1
        return Step(source, target, reward, True, self.first_values[target] - self.first_values[instead])

    @cached_property
    def first_values(self) -> list[float]:
        return self.values(set(), set())

    # Acceptance

    def total(self, steps: list[Step]) -> float:
        """A return where logged steps count as in the plan."""
        return sum(step.reward if step.jump else self.step_reward[step.source] for step in steps)

    def is_better(self, old: Trajectory, new: Walk) -> bool:
        before, after = self.total(old.steps), self.total(new.steps)
        lacks = len(old.steps) - len(new.steps)
        if not new.terminated and lacks > 0 and new.steps:
            after += lacks * min(after / len(new.steps), 0)  # the costs of the steps that were cut off
        if not old.terminated and lacks < 0 and old.steps:
            before -= lacks * max(before / len(old.steps), 0)
        spread = float(np.std([sum(map(float, episode.rewards)) for episode in self.data]))
        return after > before + self.options.threshold * max(abs(before), spread)

    def missed(self, model: Any, steps: list[Step]) -> list[float]:
        """The chance to miss each step's reward, where a forward model replays the walk."""
        truly, before, chances = self.state[steps[0].source], -math.inf, []
        for step in steps:
            here, there = self.state[step.source], self.state[step.target]
            action = plain.array(
                self.action(step.source, step.target) if step.jump else self.logged_action(step.source)
            )
            change, reward = self.predicted(model, truly, action)
            own_change, own_reward = self.predicted(model, here, action)
            # A logged step led where it led: what the model misses on it happens to the replay as well.
            truly = truly + change if step.jump else truly + change + (there - here - own_change)
            chance = abs(reward - own_reward) / max(own_reward - before, 1e-9)
            if step.jump:
                weight, std = plain.array(self.models.tests["consistency"].weight), model.observation.std
                beside = math.sqrt((weight * ((truly - there) / std) ** 2).sum())
                chance = max(chance, beside / max(self.length(step.source, step.target), 1e-9))
            chances.append(min(chance, 1.0))
            before = own_reward
        return chances

    def beyond_doubt(self, old: Trajectory, new: Walk) -> list[Step] | None:
        """The steps before the first reward that may be missed; None, if these are worse than the trajectory."""
        if self.options.doubt is None or not new.steps:
            return new.steps
        paid = [step.reward if step.jump else self.step_reward[step.source] for step in new.steps]
        before = self.total(old.steps)
        spread = float(np.std([sum(map(float, episode.rewards)) for episode in self.data]))
        may_lose = self.options.doubt * max(sum(paid) - before, abs(before), spread)
        usual = float(np.mean([self.step_reward[node] for node in self.steps]))
        chances = np.max([self.missed(model, new.steps) for model in self.forward], axis=0)
        for at, (chance, more) in enumerate(zip(chances, np.diff([usual, *paid]), strict=True)):
            jumped = any(step.jump for step in new.steps[: at + 1])
            if jumped and chance * more > may_lose:
                kept = new.steps[:at]
                stands = any(step.jump for step in kept) and self.total(kept) >= before - may_lose
                return kept if stands else None
        return new.steps

    def logged(self) -> list[Trajectory]:
        data, found = self.data, []
        for number in range(len(data)):
            start = int(data.first_rows[number])
            rows = range(start, start + int(data.lengths[number]))
            flags = bool(data.episode_terminated[number]), bool(data.episode_truncated[number])
            found.append(Trajectory(start, [Step(row, row + 1, self.logged_reward[row]) for row in rows], *flags))
        return found

    def result(self) -> list[Trajectory]:
        """All trajectories, rebuilt part by part where that is better."""
        options, count = self.options, len(self.data)
        capacity = max(math.ceil(math.sqrt(count)), round(options.max_visits * count))
        most = (capacity, max(2, capacity // 5))
        lengths = sorted((int(length) for length in self.data.lengths), reverse=True)
        horizon = options.horizon or lengths[min(max(1, count // 100), count - 1)]
        order = np.random.default_rng(0).permutation(count)
        parts = [*np.array_split(order, min(options.parts, count)), *np.array_split(order, min(2, count))]
        found, old, rebuilt = self.logged(), self.logged(), set()
        for part in parts:
            visits = Counter(node for one in found for node in one.nodes)
            uses = Counter((step.source, step.target) for one in found for step in one.steps if step.jump)
            full = {node for node in self.nodes if visits[node] >= most[0]}
            used_up = {jump for jump in self.jump_gain if uses[jump] >= most[1]}
            values = self.values(full, used_up)
            walkers = sorted(int(number) for number in part if number not in rebuilt)
            for walk in self.walks(walkers, values, visits, uses, most, horizon):
                jumps = sum(step.jump for step in walk.steps)
                fits = options.max_jumps is None or jumps <= options.max_jumps
                if not fits or not self.is_better(old[walk.number], walk):
                    continue
                if (kept := self.beyond_doubt(old[walk.number], walk)) is not None:
                    rebuilt.add(walk.number)
                    start = int(self.data.first_rows[walk.number])
                    ends = (walk.terminated, walk.truncated) if len(kept) == len(walk.steps) else (False, True)
                    found[walk.number] = Trajectory(start, kept, *ends)
                    self.cut += len(kept) < len(walk.steps)
        return found
