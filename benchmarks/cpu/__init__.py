"""The CPU suite: programs for each contender, in families, and what runs and reports them."""
