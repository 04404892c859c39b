"""The command line, the doctor and the trial of agents: assembles the layers beneath."""
