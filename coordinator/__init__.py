"""The coordinator: the clients' door, the engine that drives the stages, the membership."""
