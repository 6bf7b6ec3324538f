"""The kit that every IR layer is built with."""
