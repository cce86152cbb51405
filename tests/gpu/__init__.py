"""What only a device can show: `make gpu-check` runs it there, and renews what the tests keep of devices."""
