"""Plan of a layer → the text of its module: cores as private sections, and an nn.Module in plain torch."""
