"""svc, the command line of the control plane."""
