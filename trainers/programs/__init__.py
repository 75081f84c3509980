"""The programs of the catalogue, a page for each, by subject.

data_parallel   every rank has the whole model and a share of the data
model_parallel  every rank has a part of the model: pipeline, tensor, hybrid
asynchronous    ranks do not wait for the slowest: parameter servers
primitives      process groups and collectives without a training loop
"""
