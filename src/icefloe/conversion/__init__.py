"""A repository of one generation made a repository of another one, beside it or elsewhere."""
