"""Where models come from: hubs, the catalogue of published models, and the cache."""
