"""What is replayed: traces and scenarios on a timeline."""
