"""A policy as an ONNX model: one graph from raw observations to actions within their bounds.

The graph does what `NetworkPolicy.act` does, in the same precision: it standardises observations, compresses what lies
far outside of the data, runs the network, and scales and clips its actions. Its input is float32, or float64 for a
policy that standardises in double precision; both input and output have a batch of any size first. A graph can't raise
an error, so a row that holds NaN or infinity gets actions that are NaN.
"""

import json
from typing import Any

import numpy as np

from trajstitch.errors import InputError
from trajstitch.policies.policy import NO_LIMIT, NetworkPolicy

INPUT, OUTPUT = "observation", "action"
OPSET, IR_VERSION = 17, 8
"""Versions of ONNX from 2022, which most runtimes know."""


def require_onnx() -> Any:
    """Return the `onnx` package; raise if it isn't installed."""
    try:
        import onnx
    except ImportError as error:
        raise InputError(
            f"writing ONNX needs the package onnx, which can't be imported ({error}): pip install 'trajstitch[onnx]'"
        ) from error
    return onnx


def input_dtype(policy: NetworkPolicy) -> np.dtype:
    """Return the dtype of the observations that the graph takes."""
    return np.result_type(np.float32, policy.normaliser.mean, policy.normaliser.std)


def onnx_model(policy: NetworkPolicy, facts: dict[str, str]) -> bytes:
    """Return the policy as a checked ONNX file, with the facts as its metadata."""
    onnx = require_onnx()
    graph = _Graph(onnx)
    seen = graph.observe(policy)
    outside = graph.not_finite()
    for number, (weight, bias) in enumerate(policy.layers):
        if number == len(policy.layers) - 1:  # a Gaussian policy's second half is its log standard deviation
            weight, bias = weight[:, : policy.action_size], bias[: policy.action_size]
        weight, bias = (np.ascontiguousarray(array, np.float32) for array in (weight, bias))
        seen = graph.add(
            "Add",
            graph.add("MatMul", seen, graph.constant(f"weight_{number}", weight)),
            graph.constant(f"bias_{number}", bias),
        )
        seen = graph.add("Tanh" if number == len(policy.layers) - 1 else "Relu", seen)
    graph.act(policy, seen, outside)
    kind = onnx.helper.np_dtype_to_tensor_dtype(input_dtype(policy))
    taken = onnx.helper.make_tensor_value_info(INPUT, kind, ["batch", policy.observation_size])
    given = onnx.helper.make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, ["batch", policy.action_size])
    made = onnx.helper.make_graph(graph.nodes, "policy", [taken], [given], graph.constants)
    model = onnx.helper.make_model(
        made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="trajstitch"
    )
    onnx.helper.set_model_props(model, facts)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


class _Graph:
    """Nodes and constants of a graph in the making; values go by their names."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add an operation and return its output's name."""
        output = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def cast(self, value: str) -> str:
        return self.add("Cast", value, to=self.onnx.TensorProto.FLOAT)

    def observe(self, policy: NetworkPolicy) -> str:
        """Standardise observations and compress those beyond the limit, as `PolicyNormaliser.observe`."""
        normaliser, dtype = policy.normaliser, input_dtype(policy)
        mean, std = (self.constant(name, getattr(normaliser, name).astype(dtype)) for name in ("mean", "std"))
        seen = self.add("Div", self.add("Sub", INPUT, mean), std)
        if normaliser.limit < NO_LIMIT or dtype == np.float64:
            limit = self.constant("limit", normaliser.limit.astype(dtype))
            zero, one, most = (
                self.constant(name, np.array(value, dtype))
                for name, value in (("zero", 0), ("one", 1), ("most", np.finfo(dtype).max))
            )
            size = self.add("Abs", seen)
            excess = self.add("Min", self.add("Max", self.add("Sub", size, limit), zero), most)
            compressed = self.add("Add", self.add("Min", size, limit), self.add("Log", self.add("Add", excess, one)))
            seen = self.add("Mul", self.add("Sign", seen), compressed)
        return self.cast(seen) if dtype == np.float64 else seen

    def not_finite(self) -> str:
        """Return whether each row of the observations holds NaN or infinity."""
        wrong = self.add("Or", self.add("IsNaN", INPUT), self.add("IsInf", INPUT))
        count = self.add("ReduceSum", self.cast(wrong), self.constant("columns", np.array([1])), keepdims=1)
        return self.add("Greater", count, self.constant("nothing", np.float32(0)))

    def act(self, policy: NetworkPolicy, unit: str, outside: str) -> None:
        """Scale actions from ±1 to their bounds and clip what rounding puts beyond them."""
        low, high = (getattr(policy.normaliser, name).astype(np.float32) for name in ("low", "high"))
        scaled = self.add("Mul", unit, self.constant("half_width", (high - low) / 2))
        action = self.add("Add", scaled, self.constant("middle", (high + low) / 2))
        action = self.add("Min", self.add("Max", action, self.constant("low", low)), self.constant("high", high))
        self.add("Where", outside, self.constant("nan", np.float32(np.nan)), action, name=OUTPUT)


def facts_of(policy: NetworkPolicy) -> dict[str, str]:
    """Return what a user of the model alone should know, as ONNX keeps it: text by name."""
    normaliser, config = policy.normaliser, policy.config
    names = {name: config[name] for name in ("observation_names", "action_names") if name in config}
    facts = {
        "algorithm": config.get("policy", "unknown"),
        "seed": policy.seed,
        "steps": policy.steps,
        "action_low": normaliser.low.tolist(),
        "action_high": normaliser.high.tolist(),
        **names,
        **({"data_fingerprint": config["fingerprint"]} if "fingerprint" in config else {}),
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
