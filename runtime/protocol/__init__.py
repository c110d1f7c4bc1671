"""What coordinator and workers exchange: steps, results and devices, and their protobuf codecs."""
