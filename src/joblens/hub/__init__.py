"""Many nodes: receives their batches, keeps them durably, and hands them to the sinks."""
