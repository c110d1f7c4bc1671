"""The device's thread, copies between host and device, and the device's description."""
