"""Files of many formats in, one consistent repository out; usable without Spark."""
