"""The modelled pipeline: stages, links, devices and their times."""
