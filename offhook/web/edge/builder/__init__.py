"""What builders of agents see: changed files, flows, and what models are sent."""
