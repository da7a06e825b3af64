"""Packages: from the names people use to those of a distribution, checked before anything is built.

- :mod:`.names`           what a person types, taken apart; when two names are close
- :mod:`.aliases`         the curated table, ``aliases.toml``
- :mod:`.facts`           what the database says of the names in question
- :mod:`.resolution`      what a name means: override, table, index; a pure function of the facts
- :mod:`.standardization` the packages of a blueprint, when a sandbox is created
- :mod:`.lookup`          ``GET /v1/packages/resolve``
- :mod:`.sync`            keeping the indexes fresh, with :mod:`.reading` (the container),
  :mod:`.readers` (one for each package manager) and :mod:`.store` (the swap)
"""
