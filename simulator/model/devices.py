"""Device priors of the stages whose measured times the simulator uses.

A live scheduler learns device kind, weights and layers of every stage when an epoch begins; here
they follow from the hardware's name.
"""

from collections.abc import Sequence

from scheduler import StageCostModel, guess_costs

MODELS = {"llama2-70b": (69e9, 80), "bloom-176b": (176e9, 70)}
"""Weights and layers, by the first part of the hardware's name."""
BYTES_PER_WEIGHT = 2
DEVICE_KIND = "cuda"


def num_layers_of(hardware: str) -> int:
    """Layers of the model that `hardware` names, which `load_times` knows."""
    return MODELS[hardware.partition("/")[0]][1]


def guess_stages(hardware: str, shares: Sequence[float]) -> tuple[StageCostModel, ...]:
    """Returns the estimated costs of stages with these shares of the model, as at an epoch's start.

    `hardware` is a name that `load_times` knows, as `llama2-70b/h100-80gb/4`; the weights of a
    stage are divided by its number of devices.
    """
    model, _, num_devices = hardware.split("/")
    num_weights, _ = MODELS[model]
    return tuple(
        guess_costs(
            DEVICE_KIND,
            int(BYTES_PER_WEIGHT * num_weights * share / int(num_devices)),
            BYTES_PER_WEIGHT,
            round(num_layers_of(hardware) * share),
        )
        for share in shares
    )
