"""The demo: one conversation over several processes, two of which are killed with SIGKILL."""
