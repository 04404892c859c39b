"""Agents are tried by Pipecat's eval scenarios: `offhook eval`."""
