"""What runs kernels on NVIDIA GPUs: the assembler of their text, the driver, and memory."""
