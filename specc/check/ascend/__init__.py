"""The ladder of the Ascend target: contracts, eager NPU operators, the GE graph executed; each against float64."""
