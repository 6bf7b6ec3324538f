"""The verifier of GPU kernels: what is proved about Target IR before it is written as PTX."""
