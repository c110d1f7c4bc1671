"""What the scheduler reports: snapshots, idle time by cause, stalls, queue forecasts."""
