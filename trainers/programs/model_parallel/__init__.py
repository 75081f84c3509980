"""Every rank has a part of the model.

pipeline     layers over ranks, microbatches
residual     the network of `pipeline`: equal layers, cut into stages
tensor       weight matrices over ranks
transformer  the network of `tensor`: a small vision transformer
hybrid       data parallel times tensor parallel
"""
