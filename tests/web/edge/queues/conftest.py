"""A Redis server for the queues that servers share."""

from tests.web.edge.resume.conftest import patient, quick, redis_url

__all__ = ["patient", "quick", "redis_url"]
