"""`torch.compile(backend="neuron")`: the captured graph, run op by op on the device."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def neuron(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The dynamo backend `neuron`. Each op of the graph takes the route it takes in eager mode."""
    return graph.forward
