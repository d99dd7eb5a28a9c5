"""Opens `memext+…` URLs with adk_memory_ext; ADK imports this file by its name."""

from adk_memory_ext import register

register()
