"""Tests that an engine, an agent or a tool of another package must pass.

A class inherits from one of these, is named `Test…`, and says what is tested; pytest finds the
rest.
"""

from offhook.testing.agents_io import AgentTests as AgentTests
from offhook.testing.engines_io import RecognizerTests as RecognizerTests
from offhook.testing.engines_io import SynthesizerTests as SynthesizerTests
from offhook.testing.tools_io import ToolTests as ToolTests
