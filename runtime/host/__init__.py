"""What a process has of its host: signals, logs, tasks, memory and devices."""
