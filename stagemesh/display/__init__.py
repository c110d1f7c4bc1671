"""What people see on a terminal: tables, progress, the live view."""
