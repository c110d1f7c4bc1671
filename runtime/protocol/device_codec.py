"""Owns the conversion of a device's usage to protobuf and back; what is absent stays absent."""

import math

from protos import mesh_pb2
from runtime.host.devices import DeviceUsage


def usage_to_proto(usage: DeviceUsage) -> mesh_pb2.DeviceUsage:
    """The message that heartbeats and states carry."""
    return mesh_pb2.DeviceUsage(
        utilization=usage.utilization,
        memory_used_bytes=usage.memory_used_bytes,
        memory_total_bytes=usage.memory_total_bytes,
        power_watts=usage.power_watts,
        temperature_celsius=usage.temperature_celsius,
    )


def usage_from_proto(message: mesh_pb2.DeviceUsage) -> DeviceUsage:
    """What the message says; what is no number is absent."""
    told = ((field.name, value) for field, value in message.ListFields())
    return DeviceUsage(**{name: value for name, value in told if math.isfinite(value)})
