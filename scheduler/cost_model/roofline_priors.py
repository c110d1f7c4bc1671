"""Estimates a stage's costs from its device and weights, before the first measurement.

The first record of an epoch scales the estimate, so only its shape matters: the number of rows that
a device computes in the time of reading the weights, which differs a hundredfold between devices.
"""

from dataclasses import dataclass

from scheduler.cost_model.stage_costs import KNOTS, StageCostModel

NOMINAL_BYTES = 2e9
"""Weights of a stage that does not report their size."""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Achievable speeds of a kind of device.

    The shorter of reading and computing overlaps the longer one, except for the share `exposed`. A
    step takes at least `layer_seconds` per layer to launch its kernels.
    """

    bytes_per_second: float
    flops_per_second: float
    exposed: float
    layer_seconds: float


CPU_CORES = DeviceSpeed(1.3e10, 5e10, exposed=1.0, layer_seconds=0.0)
ACCELERATOR = DeviceSpeed(2.3e12, 6e14, exposed=0.25, layer_seconds=1e-4)
"""About two thirds of an H100's data sheet, for memory and 16-bit arithmetic."""


def guess_costs(
    device_kind: str, weights_bytes: int, bytes_per_weight: int, num_layers: int
) -> StageCostModel:
    """The prior of a stage on such a device.

    Simulated stages do not report their times; a CPU's shape is the conservative estimate.
    """
    if device_kind == "cuda":
        num_bytes = weights_bytes or NOMINAL_BYTES
        return roofline(num_bytes, ACCELERATOR, bytes_per_weight, num_layers)
    return roofline(weights_bytes or NOMINAL_BYTES, CPU_CORES, bytes_per_weight)


def roofline(
    weights_bytes: float, device: DeviceSpeed, bytes_per_weight: float, num_layers: int = 0
) -> StageCostModel:
    """Costs of a stage that reads all weights and computes two operations per weight and token.

    The longer of the two bounds a step (Williams et al., Roofline, CACM 2009), interpolated at the
    knots. The other coefficients are shares of these that fit common decoders.
    """
    fixed = max(weights_bytes / device.bytes_per_second, num_layers * device.layer_seconds)
    per_token = 2.0 * weights_bytes / bytes_per_weight / device.flops_per_second

    def rows_seconds(num_rows: int) -> float:
        shorter, longer = sorted((fixed, per_token * num_rows))
        return longer + device.exposed * shorter

    low, high = KNOTS
    first = (rows_seconds(low) - fixed) / low
    second = (rows_seconds(high) - rows_seconds(low)) / (high - low)
    last = max(second, per_token)
    return StageCostModel(
        fixed=fixed,
        prompt=fixed / 8,
        per_token=first,
        beyond_128=max(0.0, second - first),
        beyond_512=last - second,
        per_attention=per_token / 2**15,
        per_context=fixed / 2**17,
        per_sample=fixed / 2**8,
    )
