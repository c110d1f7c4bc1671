"""Load on a running mesh, and what its clients saw of it: `stagemesh bench serve`."""
