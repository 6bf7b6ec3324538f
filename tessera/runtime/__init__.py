"""What runs compiled programs: code, memory and caches of this process."""
