"""The dashboard in a browser.

service     who may come in; textual-serve on the loopback interface
browsertab  the process behind a tab, as the service sees it
browser     that process
unfinished  what it has begun and must bring to its end
"""
