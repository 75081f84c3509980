"""Every rank has a part of the model.

pipeline     layers over ranks, microbatches; on the network in `residual`
tensor       weight matrices over ranks; on the network in `transformer`
hybrid       data parallel times tensor parallel
"""
