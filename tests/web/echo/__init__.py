"""The smallest agent whose answer depends on the conversation so far."""
