"""Résumé coach: the sample agent of adk_memory_ext.

Nothing is imported here, so that the demo can start without loading ADK; ADK finds the app in
`resume_coach.agent`.
"""
