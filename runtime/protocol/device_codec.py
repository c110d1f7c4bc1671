"""Converts a device's usage to protobuf and back; absent figures stay absent."""

import math

from protos import mesh_pb2
from runtime.host.devices import DeviceUsage


def usage_to_proto(usage: DeviceUsage) -> mesh_pb2.DeviceUsage:
    """Makes the message of heartbeats and states."""
    return mesh_pb2.DeviceUsage(
        utilization=usage.utilization,
        memory_used_bytes=usage.memory_used_bytes,
        memory_total_bytes=usage.memory_total_bytes,
        power_watts=usage.power_watts,
        temperature_celsius=usage.temperature_celsius,
    )


def usage_from_proto(message: mesh_pb2.DeviceUsage) -> DeviceUsage:
    """Parses the message; non-finite figures count as absent."""
    fields = ((field.name, value) for field, value in message.ListFields())
    return DeviceUsage(**{name: value for name, value in fields if math.isfinite(value)})
