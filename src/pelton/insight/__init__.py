"""What bounds the speed: the limits of this machine, and how close a phase comes to them."""
