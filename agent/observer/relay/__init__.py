"""The relay of an observer: one thread between the ranks of this host and everybody who looks at them.

relay         the thread, and its interface for the observer's main thread
following     which ranks are listened to, and whose sockets are tried again
intake        what the ranks publish, in order and without gaps, for the record and for the model
holds         steps without the time for which other ranks were held for some work of ours
frames        the frames of the model, published while somebody looks on
verdicts      the judge at work, and what becomes of its verdicts
hanging       what the ranks are asked of a run that makes no steps, and the record of their answers
reasons       the reasons for verdicts: lines of code, and causes of memory that grows, for which ranks are asked
suspects      the records of ranks that may be slow, asked for where they would decide
"""
