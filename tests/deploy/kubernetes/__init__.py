"""The control plane as manifests for Kubernetes."""
