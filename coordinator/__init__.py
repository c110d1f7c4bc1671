"""The coordinator: the clients' API, the engine that drives the stages, the membership."""
