"""The zoo: small worlds with known dynamics, rewards and a known good controller, and data logged in each.

from worlds import WORLDS

world = WORLDS["two-leg"]
data = world.collect(seed=0)          # a few thousand transitions, float32
world.true_returns(data)              # the true returns of the same actions
world.score(policy.act)               # noise-free returns of a policy from the usual starts
world.optimum, world.success(policy.act)
"""

from gliders import Arm, Glider, Pole, Reactor
from mazes import GOAL_X, GOAL_Y, SPEED, TIME, Look, Maze, X, Y
from plants import Battery, Cart, Hidden, MountainCar, Pendulum, Tank
from world import World

HUNDRED = Look().add(*range(TIME + 1, TIME + 101))
WILD = Look((X, Y, TIME + 1), (1e-3, 1e4, 1.0))
STAMPS = Look().add(TIME + 2)
GOALS = Look().add(GOAL_X, GOAL_Y)
SPEEDS = (0.5, 0.75, 1.0)
LEGS = "some episodes go well from the start to the middle and wait there, others from the middle to the goal"

_ALL: tuple[World, ...] = (
    Maze("two-leg", f"A maze with rewards by nearness: {LEGS}.", cloning_fails=True),
    Maze(
        "two-leg-steps", f"A maze at a cost of 1 each step until the goal: {LEGS}.", reward="steps", cloning_fails=True
    ),
    Maze(
        "sparse-goal",
        f"A maze with a reward of 1 at the goal, which ends it: {LEGS}.",
        reward="goal",
        cloning_fails=True,
    ),
    Maze(
        "sparse-once",
        f"A maze with a reward of 1 at the first visit of the goal, and no end there: {LEGS}.",
        reward="once",
        cloning_fails=True,
    ),
    Maze(
        "play-four-goals",
        "A maze with one of four goals in the observation: undirected wandering.",
        logged="play",
        reward="goal",
        goals="four",
        look=GOALS,
    ),
    Maze(
        "play-any-goal",
        "A maze with any goal in the observation: undirected wandering.",
        logged="play",
        reward="goal",
        goals="any",
        look=GOALS,
    ),
    Maze(
        "noisy-reward-0.3", "The two-leg maze with noise of 0.3 on each reward.", reward_noise=0.3, cloning_fails=True
    ),
    Maze(
        "noisy-reward-0.6", "The two-leg maze with noise of 0.6 on each reward.", reward_noise=0.6, cloning_fails=True
    ),
    Maze(
        "slippery",
        "The two-leg maze with noise on each move, half as large as a step.",
        slip=0.05,
        stochastic=True,
        unstable=True,
    ),
    Maze(
        "payload",
        "The two-leg maze with three payloads, in the observation, that slow the robot down.",
        speeds=SPEEDS,
        look=Look().add(SPEED),
        cloning_fails=True,
    ),
    Maze(
        "payload-tiny-unit",
        "The same with the payload in millionths.",
        speeds=SPEEDS,
        look=Look().add(SPEED, unit=1e-6),
        cloning_fails=True,
    ),
    Tank("set-point", "A tank whose set point, in the observation, differs between episodes; mixed controllers."),
    Tank("set-point-tiny-unit", "The same with the set point in millionths.", unit=1e-6),
    Battery("exogenous", "A battery traded at a price that no action moves; mixed traders."),
    Cart(
        "costs",
        "A cart to keep near the origin at a cost each step; it may be lost at a high price, and some logs stop early.",
    ),
    Maze("delayed", f"A maze with one reward after 60 steps, by nearness: {LEGS}.", reward="end"),
    Maze(
        "delayed-with-clock",
        "The same with the time in the observation.",
        reward="end",
        look=Look().add(TIME, unit=1 / 60),
    ),
    Hidden("hidden-luck", "Rewards are each episode's luck, which can't be seen.", reward_noise=0.1),
    Hidden("hidden-place", "The observation is noise; place and direction of the reward can't be seen.", hides="place"),
    Pendulum("pendulum", "Gymnasium's pendulum by mixed controllers."),
    MountainCar("mountain-car", "Gymnasium's continuous mountain car by mixed controllers."),
    Maze(
        "mostly-zero",
        "A maze with a reward of 1 at the goal, which aimless episodes hardly ever reach.",
        logged="wandering",
        reward="goal",
    ),
    Maze("irrelevant-noise", "The two-leg maze with 100 columns of noise.", others="noise", look=HUNDRED),
    Maze("irrelevant-drift", "The two-leg maze with 100 columns that drift slowly.", others="drift", look=HUNDRED),
    Maze(
        "wild-units",
        "The two-leg maze in units of 1e3 and 1e-4, with a constant of 1e12.",
        others="stamps",
        look=WILD,
        cloning_fails=True,
    ),
    Maze("time-stamps", "The two-leg maze with milliseconds since the log began.", others="stamps", look=STAMPS),
    Maze("one-policy", "An open plane and one noisy policy: starts decide returns.", logged="one policy", wall=False),
    Maze("one-long", "The two-leg maze with one episode of 1,500 steps among short ones.", logged="long and short"),
    Maze("single", "The maze with a single episode of 3,000 steps.", logged="long"),
    Maze("tiny", "The two-leg maze with 5 episodes of 10 steps.", logged="few legs"),
    Glider("glider-no-velocity", f"A body whose velocity can't be seen: {LEGS}.", hides_velocity=True),
    Glider("glider-late", "A body whose actions count one step later, which can't be seen.", late=True),
)

WORLDS: dict[str, World] = {world.name: world for world in _ALL}

_UNSEEN: tuple[World, ...] = (
    Glider("glider", f"A body with a velocity, with rewards by nearness: {LEGS}."),
    Glider("glider-3d", "The same in three dimensions.", dimensions=3),
    Glider("glider-goal", f"A reward of 1 at the goal, which ends it: {LEGS}.", reward="goal"),
    Glider("glider-goal-1000", "The same with a reward of 1,000.", reward="goal", scale=1000.0),
    Glider("glider-cost", "A cost of pushing until the goal; at one wall the body is lost.", reward="cost"),
    Glider("glider-noise", "The glider with noise of 1 on each reward.", reward_noise=1.0),
    Glider("glider-slip", "The glider with noise on each move.", slip=0.02, stochastic=True, unstable=True),
    Glider("glider-winds", "The glider in one of three winds, in the observation.", winds=3),
    Glider("glider-eight-winds", "The same with eight winds.", winds=8),
    Glider(
        "glider-late-no-velocity",
        "Actions count one step later, and neither this nor the velocity can be seen.",
        late=True,
        hides_velocity=True,
    ),
    Glider("glider-rounded", "Sensors that round to a fiftieth.", sensor=0.02),
    Glider("glider-coarse", "Sensors that round to a tenth.", sensor=0.1),
    Glider("glider-idle", "One action is always 0.", idle=True),
    Glider("glider-one-policy", "One noisy policy: starts decide returns.", logged="one policy"),
    Glider("glider-play", "Undirected wandering, with rewards by nearness.", logged="play"),
    Glider("glider-play-goal", "Undirected wandering, with a reward of 1 at the goal.", logged="play", reward="goal"),
    Pole("pole", "A pole to balance on a cart, by mixed controllers: 1 each step until it falls."),
    Arm("arm", "An arm of two links, whose angles wrap around, and one of three targets; mixed controllers."),
    Reactor("reactor", "A reactor with four recipes and a feed that drifts by chance; mixed controllers."),
    Reactor("reactor-steady", "The same with a feed that differs between episodes.", drift=0.0, stochastic=False),
    Reactor("reactor-one-recipe", "One recipe, and a feed that drifts little.", drift=0.005, recipes=1),
)

UNSEEN: dict[str, World] = {world.name: world for world in _UNSEEN}
"""Worlds that were made after the method: nothing in it was chosen with them."""

ALL: dict[str, World] = WORLDS | UNSEEN
