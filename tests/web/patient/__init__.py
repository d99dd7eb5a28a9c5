"""An agent that waits until it is told to go on, in an app that refuses a second turn."""
