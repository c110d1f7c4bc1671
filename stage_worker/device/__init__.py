"""The device's one thread, copies between host and device, and the device's description."""
