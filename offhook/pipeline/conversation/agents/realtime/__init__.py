"""An agent whose model hears and speaks, behind OpenAI's Realtime API."""
