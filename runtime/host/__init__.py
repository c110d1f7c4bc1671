"""The process and its host: signals, logs, tasks, memory and devices."""
