"""Every rank has the whole model and a share of the data.

simplenet   one linear layer: the smallest
convnet     batch normalization, whose statistics are broadcast
mymodel     DataParallel in one process beside DDP
resnet      a deep network, whose gradients fill many buckets
resnet34    a network written from its blocks, gradients averaged by hand
accumulate  a large batch in small pieces
rebalance   shares that follow each rank's speed
"""
