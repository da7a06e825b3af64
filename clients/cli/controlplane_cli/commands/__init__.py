"""The commands of ``svc``, by what they are about; ``controlplane_cli.main`` lists them."""
